"""Training data that is not the same in every epoch: other loaders, or another number of micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .feed import Feed, MicroBatches


class EpochFeeds(Feed):
    """Has the feed of an epoch made again where that differs from the epoch before.

    Args:
        make: Makes the feed of an epoch; called with the epoch, and True where a run was restored.
        kind_of: For an epoch, a value that differs where its feed does.
        epoch: The epoch to begin with.
        reloads: Whether loaders are made again, not their steps alone.
    """

    def __init__(
        self,
        make: Callable[[int, bool], Feed],
        kind_of: Callable[[int], Any],
        epoch: int = 0,
        reloads: bool = False,
    ) -> None:
        self._make, self._kind_of, self.reloads = make, kind_of, reloads
        self._micro_batch: int | None = None
        self._take(epoch, restored=False)

    def _take(self, epoch: int, restored: bool) -> None:
        feed = self._make(epoch, restored)
        if self._micro_batch is not None:
            feed.use_micro_batches(self._micro_batch)
        self._feed, self._kind = feed, self._kind_of(epoch)
        super().__init__(feed.settings)
        self.data, self.steps_per_epoch = feed.data, feed.steps_per_epoch
        self.step_size, self.micro_batches = feed.step_size, feed.micro_batches

    def use_micro_batches(self, size: int) -> None:
        self._micro_batch = size
        self._feed.use_micro_batches(size)
        self.micro_batches = self._feed.micro_batches

    def prepare(self, epoch: int) -> None:
        if self._kind_of(epoch) != self._kind:
            self._feed.close()
            self._take(epoch, restored=False)

    def reload(self, epoch: int) -> None:
        if self.reloads:
            self._feed.close()
            self._take(epoch, restored=True)

    def steps(self, epoch: int, position: int = 0) -> Iterator[MicroBatches]:
        self.prepare(epoch)
        return self._steps(self._feed.steps(epoch, position))

    def _steps(self, steps: Iterator[MicroBatches]) -> Iterator[MicroBatches]:
        self.ended = False
        for step in steps:
            self.ended = self._feed.ended
            yield step

    def fingerprint(self) -> dict[str, Any]:
        return self._feed.fingerprint()

    def state_dict(self) -> dict[str, Any]:
        return self._feed.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._feed.load_state_dict(state)

    def samples_of(self, micro_batch: int) -> list[Any]:
        return self._feed.samples_of(micro_batch)

    def step_samples(self) -> Sequence[Any]:
        return self._feed.step_samples()

    def close(self) -> None:
        self._feed.close()
