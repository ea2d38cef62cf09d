"""Which checkpoints of a run are kept: a value that ``Checkpoint`` replaces as a whole."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class KeptCheckpoints:
    """The names of the checkpoints that are kept.

    Args:
        saved: Those saved by cadence or as one of the best, the oldest first.
        ranked: Those with the best monitored values, the best one first, each with its value.

    Example:
        >>> kept = KeptCheckpoints().adding("step-00000001").adding("step-00000002").adding("step-00000003")
        >>> kept.superfluous(keep=2)
        ['step-00000001']
    """

    saved: tuple[str, ...] = ()
    ranked: tuple[tuple[str, float], ...] = ()

    @property
    def best(self) -> str | None:
        """The one with the best monitored value; None before the first."""
        return self.ranked[0][0] if self.ranked else None

    @property
    def best_score(self) -> float | None:
        """That value."""
        return self.ranked[0][1] if self.ranked else None

    def is_ranked(self, name: str) -> bool:
        """Whether it is one of the best."""
        return any(name == one for one, _ in self.ranked)

    def adding(self, name: str) -> KeptCheckpoints:
        """With one more saved, the newest; the same where it was saved before."""
        return self if name in self.saved else replace(self, saved=(*self.saved, name))

    def ranking(
        self, name: str, score: float, most: int, better: Callable[[float, float | None], bool]
    ) -> KeptCheckpoints:
        """With one more among the best; the same where its value is not among them.

        Args:
            name: The checkpoint that is to be saved.
            score: Its monitored value.
            most: How many of the best are kept.
            better: Whether the first value is better than the second, which is None for none.
        """
        others = [(one, value) for one, value in self.ranked if one != name]
        place = sum(not better(score, value) for _, value in others)
        if place >= most or not better(score, None):
            return self
        return replace(self, ranked=(*others[:place], (name, score), *others[place:])[:most])

    def superfluous(self, keep: int | None) -> list[str]:
        """Those beyond the newest ``keep`` that are not among the best; none where ``keep`` is None."""
        return [] if keep is None else [name for name in self.saved[:-keep] if not self.is_ranked(name)]

    def without(self, names: Collection[str]) -> KeptCheckpoints:
        """With these no longer saved."""
        return replace(self, saved=tuple(name for name in self.saved if name not in names))

    def among(self, present: Collection[str]) -> KeptCheckpoints:
        """With those alone that are in the folder."""
        kept = self.without([name for name in self.saved if name not in present])
        return replace(kept, ranked=tuple(one for one in kept.ranked if one[0] in present))
