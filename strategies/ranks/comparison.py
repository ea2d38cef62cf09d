"""Whether ranks have the same values, seen in one small all-reduce and not by gathering them."""

from __future__ import annotations

import random
from functools import cache
from hashlib import blake2b
from typing import Any

import torch

from ..base import Strategy


def same_everywhere(strategy: Strategy, value: Any) -> bool:
    """Whether all ranks have equal values. To be called on all ranks; each gets the same answer.

    Args:
        strategy: Of the run.
        value: Plain data: its ``repr`` is compared, by a checksum of 56 bits.
    """
    [digest] = _digests(value, 1, 7)
    highest, lowest = strategy.all_reduce(torch.tensor([digest, -digest], device="cpu"), "max").tolist()
    return bool(highest == -lowest)


def same_in_tensor_groups(strategy: Strategy, value: Any) -> bool:
    """Whether the ranks of each tensor group have equal values. To be called on all ranks.

    A rank adds its checksum times a random factor, the first of each group takes off its own times the
    group's factors: the sum is zero where all are equal, and as good as never where some are not.

    Args:
        strategy: Of the run.
        value: Plain data: its ``repr`` is compared, by a checksum of 96 bits.
    """
    size, place = strategy.tensor_parallel_size, strategy.tensor_rank
    if size == 1:
        return True
    mine = [
        digest * (factors[place - 1] if place else -sum(factors))
        for digest, factors in zip(
            _digests(value, _SUMS, 3), _factors(strategy.data_rank, size), strict=True
        )
    ]
    return not any(strategy.all_reduce(torch.tensor(mine, device="cpu")).tolist())


_SUMS = 4


@cache
def _factors(data_rank: int, size: int) -> list[list[int]]:
    """For each sum, those of a group's ranks but the first; sums over 2 ** 20 groups of 8 fit 63 bits."""
    draw = random.Random(data_rank)
    return [[draw.randrange(1, 1 << 15) for _ in range(size - 1)] for _ in range(_SUMS)]


def _digests(value: Any, many: int, size: int) -> list[int]:
    """Parts of a checksum, of ``size`` bytes each."""
    whole = blake2b(repr(value).encode(), digest_size=many * size).digest()
    return [int.from_bytes(whole[n : n + size]) for n in range(0, many * size, size)]
