"""``CombinedLoader``: several loaders in one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, zip_longest
from typing import Any

from .....trainer.data.combined_loader import CombinedLoader as _CombinedLoader

_MODES = {"max_size_cycle": "cycle", "max_size": "max", "min_size": "min"}


class CombinedLoader:
    """Several loaders: a batch of each in every training step, or one after the other in evaluations.

    Args:
        iterables: A dict or list of them.
        mode: ``"min_size"``, ``"max_size"`` or ``"max_size_cycle"``; ``"sequential"`` is for evaluations.
    """

    iterables: Any

    def __new__(cls, iterables: Any, mode: str = "min_size") -> CombinedLoader:
        if mode == "sequential":
            return list.__new__(OneAfterTheOther)
        return object.__new__(Together)

    def __init__(self, iterables: Any, mode: str = "min_size") -> None:
        self.iterables = iterables

    @property
    def flattened(self) -> list[Any]:
        """The loaders in a list."""
        return list(self.iterables.values() if isinstance(self.iterables, dict) else self.iterables)


class OneAfterTheOther(CombinedLoader, list[Any]):
    """Loaders of an evaluation, which reads one after the other."""

    def __init__(self, iterables: Any, mode: str = "sequential") -> None:
        super().__init__(iterables, mode)
        self.extend(self.flattened)


class Together(CombinedLoader, _CombinedLoader):
    """Training loaders of which each step has a batch."""

    def __init__(self, iterables: Any, mode: str = "min_size") -> None:
        super().__init__(iterables, mode)
        _CombinedLoader.__init__(self, iterables, _MODES.get(mode, mode))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return (min if self.mode == "min" else max)(map(len, self.flattened))

    def __iter__(self) -> Iterator[tuple[Any, int, int]]:
        """Batches with their number and a 0, as Lightning gives them."""
        loaders: list[Any] = self.flattened
        if self.mode == "cycle":
            loaders = [_again(one) for one in loaders]
        for number, parts in enumerate(islice(zip_longest(*loaders), len(self))):
            yield self.batch(list(parts)), number, 0


def _again(loader: Any) -> Iterator[Any]:
    """Its batches without an end."""
    while True:
        yield from loader
