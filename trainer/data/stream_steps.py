"""Deals the batches of a stream out to steps: to ranks that read all of it, or each its part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...errors import PacelineError
from ...strategies.ranks.comparison import gather_alike, total_read
from ..utils.nested import count_samples
from .feed import FeedSettings, MicroBatches, read_isolated

Isolation = Callable[[int], Callable[[], None] | None]


class Cursor:
    """One pass over a source of batches.

    Args:
        limit: At most so many batches; None: all.
        isolation: For a batch's number, what to seed before it is read; None where nothing is drawn here.
        handed_out: Batches that an earlier part of the pass has taken.
        samples: Samples that an earlier part of the pass has taken.

    Attributes:
        spent: Whether the source is at its end.
    """

    def __init__(
        self, batches: Iterator[Any], limit: int | None, isolation: Isolation, handed_out: int, samples: int
    ) -> None:
        self._batches, self._limit, self._isolation = batches, limit, isolation
        self.handed_out, self.samples, self.spent = handed_out, samples, False
        self._waiting: tuple[Any, int] | None = None

    def peek(self) -> tuple[Any, int] | None:
        """The next batch and its samples, which ``take`` gives again; None at the end."""
        if self._waiting is None and not self.spent and self.handed_out != self._limit:
            try:
                batch = read_isolated(self._batches, self._isolation(self.handed_out))
                self._waiting = batch, count_samples(batch)
            except StopIteration:
                self.spent = True
        return self._waiting

    def take(self) -> tuple[Any, int] | None:
        """The next batch and its samples; None at the end."""
        found, self._waiting = self.peek(), None
        if found is not None:
            self.handed_out += 1
            self.samples += found[1]
        return found

    def finish(self) -> None:
        """No more is read."""
        self._waiting, self.spent = None, True


class StreamSteps(ABC):
    """Makes the steps of a pass.

    Args:
        moved: Brings a batch to the device; called with it and its number in the pass.
        full: The batches of a full step: over all ranks, or of this one where it reads its part.

    Attributes:
        own_part: Whether each rank reads its part.
        short: Whether the step given last has fewer batches than a full one.
    """

    own_part: bool
    short = False

    def __init__(
        self, cursor: Cursor, settings: FeedSettings, moved: Callable[[Any, int], Any], full: int
    ) -> None:
        self._cursor, self._ranks, self._moved, self._full = cursor, settings.ranks, moved, full

    @abstractmethod
    def gather(self) -> MicroBatches:
        """This rank's micro-batches of the next step; none at the end."""

    def finish(self) -> None:
        """This rank's part was at its end when the run was saved."""
        self._cursor.finish()

    @abstractmethod
    def skip(self) -> int:
        """Read forward; by how many samples the position moved, 0 at the end."""


class SharedSteps(StreamSteps):
    """Every rank reads all batches, and takes its own of each step.

    That all have read as much is seen in each step, in one reduction of four numbers.
    """

    own_part = False

    def gather(self) -> MicroBatches:
        if self._full == 1 and self._ranks.world_size == 1:
            return self._gather_one()
        rank, world_size = self._ranks.data_rank, self._ranks.data_world_size
        batches: list[Any] = []
        sizes: list[int] = []
        total = count = 0
        start, first = self._cursor.handed_out, None
        while count < self._full and (found := self._cursor.take()):
            batch, size = found
            first = batch if not count else first
            if count % world_size == rank:
                batches.append(self._moved(batch, start + count))
                sizes.append(size)
            total, count = total + size, count + 1
        if self._ranks.world_size > 1:
            self._check_alike(count, total)
        self.short = count < self._full
        if len(batches) < -(-count // world_size):  # a rank left without one computes with the first
            batches.append(self._moved(first, start))
            sizes.append(0)
        return MicroBatches(batches, sizes, total, total)

    def _gather_one(self) -> MicroBatches:
        """A step of one batch on one rank, at less cost."""
        found = self._cursor.take()
        self.short = found is None
        if found is None:
            return MicroBatches([], [], 0, 0)
        batch, size = found
        return MicroBatches([self._moved(batch, self._cursor.handed_out - 1)], [size], size, size)

    def _check_alike(self, batches: int, samples: int) -> None:
        """See that all ranks have read as much for this step: a rank without one would leave the others.

        Raises:
            PacelineError: on all ranks, naming what each has read.
        """
        highest = self._ranks.all_reduce(
            torch.tensor([batches, -batches, samples, -samples]), "max"
        ).tolist()
        if highest[0] == -highest[1] and highest[2] == -highest[3]:
            return
        cursor = self._cursor
        everyone = gather_alike(self._ranks, (cursor.samples, cursor.spent))
        counts = [
            f"rank {rank}: {count} samples{'' if spent else ' or more'}"
            for rank, (count, spent) in enumerate(everyone)
        ]
        raise PacelineError(
            "the ranks' data begins alike and ends apart: it is neither the same for all ranks nor shared "
            "out among them",
            code="ranks-read-differently",
            got=", ".join(counts),
            fix="give every rank the same data (each takes its own batches of it), or another part to each",
        )

    def skip(self) -> int:
        found = self._cursor.take()
        return 0 if found is None else found[1]


class OwnSteps(StreamSteps):
    """Each rank reads its part, and in each step the ranks say what they have left."""

    own_part = True
    _last: Any = None  # a rank whose part is at its end computes with this batch

    def finish(self) -> None:
        """Its first batch only serves to compute with."""
        found = self._cursor.peek()
        assert found is not None
        self._last = self._moved(found[0], 0)
        self._cursor.finish()

    def gather(self) -> MicroBatches:
        batches: list[Any] = []
        sizes: list[int] = []
        while len(batches) < self._full and (found := self._cursor.take()):
            batches.append(self._moved(found[0], self._cursor.handed_out - 1))
            sizes.append(found[1])
        self._last = batches[-1] if batches else self._last
        most, least = self._ranks.all_reduce(torch.tensor([len(sizes), -len(sizes)]), "max").tolist()
        # Both are compared where ranks split layers: 8 samples in two batches are not the same as in one.
        total = int(total_read(self._ranks, torch.tensor([sum(sizes), len(sizes)]))[0])
        missing, self.short = most - len(sizes), -least < self._full
        return MicroBatches(batches + [self._last] * missing, sizes + [0] * missing, total, total)

    def skip(self) -> int:
        return self.gather().advance
