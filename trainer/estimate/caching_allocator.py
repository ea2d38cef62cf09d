"""How torch's caching allocator would lay out a step's tensors: what it must reserve beyond what is live.

The rules of ``c10/cuda/CUDACachingAllocator.cpp``: sizes in steps of 512 bytes; blocks up to 1 MiB are cut
out of segments of 2 MiB, up to 10 MiB of 20 MiB, larger ones get a segment of their own in steps of 2 MiB;
the smallest free block that is large enough is taken, and what is left of it stays free; neighbours are
merged.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from torch import Tensor

_STEP, _SMALL, _LARGE, _ROUND = 512, 2**20, 10 * 2**20, 2 * 2**20


@dataclass(eq=False)
class _Block:
    size: int
    free: bool = False
    before: _Block | None = None
    after: _Block | None = None
    number: int = field(default_factory=count().__next__)  # the same choice among equal ones in each run


@dataclass
class _Pool:
    """Free blocks of one kind by size."""

    least_rest: int
    sizes: list[tuple[int, int]] = field(default_factory=list)
    blocks: dict[int, _Block] = field(default_factory=dict)

    def add(self, block: _Block) -> None:
        """The block is free from here on."""
        block.free = True
        self.blocks[block.number] = block
        insort(self.sizes, (block.size, block.number))

    def remove(self, block: _Block) -> None:
        """The block is taken."""
        block.free = False
        del self.blocks[block.number]
        del self.sizes[bisect_left(self.sizes, (block.size, block.number))]

    def smallest(self, size: int) -> _Block | None:
        """The smallest free block of at least this size."""
        place = bisect_left(self.sizes, (size, -1))
        return self.blocks[self.sizes[place][1]] if place < len(self.sizes) else None


class CachingAllocator:
    """Counts what is reserved, and what is live of it.

    Example:
        >>> allocator = CachingAllocator()
        >>> block = allocator.take(3 * 2**20)
        >>> allocator.reserved // 2**20, allocator.live // 2**20
        (20, 3)
    """

    def __init__(self) -> None:
        self.reserved = self.live = self.most_live = 0
        self._small, self._large = _Pool(_STEP), _Pool(_SMALL + 1)
        self._known: dict[int, Any] = {}

    @property
    def fragments(self) -> int:
        """What had to be reserved beyond the most that was live at once."""
        return self.reserved - self.most_live

    def take(self, size: int) -> _Block:
        """A block for so many bytes."""
        size = max(_STEP, -(-size // _STEP) * _STEP)
        pool = self._pool(size)
        block = pool.smallest(size)
        if block is None:
            block = _Block(_segment(size))
            self.reserved += block.size
        else:
            pool.remove(block)
        rest = block.size - size
        if rest >= pool.least_rest:
            left = _Block(rest, before=block, after=block.after)
            if block.after is not None:
                block.after.before = left
            block.size, block.after = size, left
            pool.add(left)
        self.live += block.size
        self.most_live = max(self.most_live, self.live)
        return block

    def give_back(self, block: _Block) -> None:
        """The block is free again, together with free neighbours."""
        self.live -= block.size
        pool = self._pool(block.size)
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.free:
                pool.remove(neighbour)
                block = _merged(*((neighbour, block) if neighbour is block.before else (block, neighbour)))
        pool.add(block)

    def _pool(self, size: int) -> _Pool:
        return self._small if size <= _SMALL else self._large

    def see(self, tensor: Tensor) -> None:
        """Take a block for a tensor's storage, and give it back when the storage is gone."""
        storage = tensor.untyped_storage()
        if id(storage) in self._known or not storage.nbytes():
            return
        block = self.take(storage.nbytes())
        self._known[id(storage)] = weakref.ref(storage, partial(self._gone, id(storage), block))

    def _gone(self, key: int, block: _Block, reference: Any) -> None:
        del self._known[key]
        self.give_back(block)


def _segment(size: int) -> int:
    if size <= _SMALL:
        return 2 * _SMALL
    return 2 * _LARGE if size < _LARGE else -(-size // _ROUND) * _ROUND


def _merged(first: _Block, second: _Block) -> _Block:
    first.size += second.size
    first.after = second.after
    if second.after is not None:
        second.after.before = first
    return first
