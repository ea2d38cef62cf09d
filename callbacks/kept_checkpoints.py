"""Which checkpoints of a run are kept: a value that ``Checkpoint`` replaces as a whole."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class KeptCheckpoints:
    """The names of the checkpoints that are kept.

    Args:
        saved: Those saved by cadence, the oldest first.
        best: The one with the best monitored value; None before the first.
        best_score: That value.

    Example:
        >>> kept = KeptCheckpoints().adding("step-00000001").adding("step-00000002").adding("step-00000003")
        >>> kept.superfluous(keep=2)
        ['step-00000001']
    """

    saved: tuple[str, ...] = ()
    best: str | None = None
    best_score: float | None = None

    def adding(self, name: str) -> KeptCheckpoints:
        """With one more saved, the newest; the same where it was saved before."""
        return self if name in self.saved else replace(self, saved=(*self.saved, name))

    def superfluous(self, keep: int | None) -> list[str]:
        """Those beyond the newest ``keep`` that are not the best; none where ``keep`` is None."""
        return [] if keep is None else [name for name in self.saved[:-keep] if name != self.best]

    def without(self, names: Collection[str]) -> KeptCheckpoints:
        """With these no longer saved."""
        return replace(self, saved=tuple(name for name in self.saved if name not in names))

    def among(self, present: Collection[str]) -> KeptCheckpoints:
        """With those alone that are in the folder; a best that is not has no score either."""
        kept = self.without([name for name in self.saved if name not in present])
        return kept if kept.best in present else KeptCheckpoints(kept.saved)
