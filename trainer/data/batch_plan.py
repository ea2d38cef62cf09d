"""Which samples a step takes, and how a step is cut into micro-batches: arithmetic only.

An epoch is one order of samples, the same on every rank. Step by step it is cut into global batches,
each of those into ``micro-batches x ranks`` pieces as even as they go: piece ``j * world + rank`` is
micro-batch ``j`` of ``rank``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle


def split(count: int, pieces: int) -> list[int]:
    """``count`` as ``pieces`` whole numbers that differ by at most one, larger ones first."""
    size, larger = divmod(count, pieces)
    return [size + 1] * larger + [size] * (pieces - larger)


@dataclass(frozen=True)
class BatchSizes:
    """The sizes of all batches, step by step: what a loader over a stream is asked for.

    Args:
        step: The batches of a full step, over all ranks.
        samples: Where the last step ends; None: nowhere.
    """

    step: tuple[int, ...]
    samples: int | None = None

    def __iter__(self) -> Iterator[int]:
        if self.samples is None:
            yield from cycle(self.step)
        left = self.samples or 0
        for size in cycle(self.step):
            if left <= 0:
                return
            yield min(size, left)
            left -= size


@dataclass(frozen=True)
class Piece:
    """One micro-batch of one rank: ``size`` samples of the epoch's order from ``start`` on."""

    start: int
    size: int


@dataclass(frozen=True)
class Layout:
    """How a global batch is spread.

    Args:
        micro_batch: The most samples one rank takes at once.
        accumulate: Micro-batches in a step.
        global_batch: Samples in a step, over all ranks and micro-batches; None: the product.
        rank: Whose pieces are given; None: those of all ranks.
    """

    micro_batch: int
    accumulate: int = 1
    global_batch: int | None = None
    rank: int | None = 0
    world_size: int = 1
    drop_last: bool = False

    @property
    def step_size(self) -> int:
        """Samples in a full step."""
        return self.global_batch or self.micro_batch * self.accumulate * self.world_size

    def steps(self, samples: int) -> int:
        """Steps in an epoch of so many samples."""
        if self.drop_last:
            return samples // self.step_size
        return -(-samples // self.step_size)

    def pieces(self, start: int, size: int) -> list[Piece]:
        """This rank's micro-batches of the step that takes ``size`` samples from ``start`` on."""
        rounds = -(-size // (self.micro_batch * self.world_size))
        sizes = split(size, rounds * self.world_size)
        pieces = []
        for index, length in enumerate(sizes):
            if self.rank is None or index % self.world_size == self.rank:
                pieces.append(Piece(start, length))
            start += length
        return pieces

    def micro_batches(self, samples: int, position: int = 0) -> int:
        """This rank's micro-batches from ``position`` to the epoch's end."""
        ranks = self.world_size if self.rank is None else 1
        full, rest = divmod(max(samples - position, 0), self.step_size)
        at_once = self.micro_batch * self.world_size
        last = 0 if self.drop_last else -(-rest // at_once)
        return (full * -(-self.step_size // at_once) + last) * ranks

    def epoch(self, samples: int, position: int = 0) -> Iterator[tuple[int, list[Piece]]]:
        """The steps from ``position`` to the epoch's end: (samples in the step, this rank's pieces)."""
        while position < samples:
            size = min(self.step_size, samples - position)
            if self.drop_last and size < self.step_size:
                return
            yield size, self.pieces(position, size)
            position += size
