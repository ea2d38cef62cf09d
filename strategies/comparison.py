"""Whether ranks have the same values, seen in one small all-reduce and not by gathering them."""

from __future__ import annotations

import random
from hashlib import blake2b
from typing import Any

import torch

from .base import Strategy


def same_everywhere(strategy: Strategy, value: Any) -> bool:
    """Whether all ranks have equal values. To be called on all ranks; each gets the same answer.

    Args:
        strategy: Of the run.
        value: Plain data: its ``repr`` is compared, by a checksum of 56 bits.
    """
    digest = _digest(value, 7)
    highest, lowest = strategy.all_reduce(torch.tensor([digest, -digest], device="cpu"), "max").tolist()
    return bool(highest == -lowest)


def same_in_tensor_groups(strategy: Strategy, value: Any) -> bool:
    """Whether the ranks of each tensor group have equal values. To be called on all ranks.

    A rank adds its checksum times a random factor, the first of each group takes off its own times the
    group's factors: the sum is zero where all are equal, and as good as never where some are not.

    Args:
        strategy: Of the run.
        value: Plain data: its ``repr`` is compared.
    """
    size, place = strategy.tensor_parallel_size, strategy.tensor_rank
    if size == 1:
        return True
    draw = random.Random(strategy.data_rank)
    factors = [[draw.randrange(1, 1 << 15) for _ in range(size - 1)] for _ in range(_SUMS)]
    digest = _digest(value, 3)  # the sum over many thousand ranks is below 2 ** 63
    mine = [digest * (row[place - 1] if place else -sum(row)) for row in factors]
    return not any(strategy.all_reduce(torch.tensor(mine, device="cpu")).tolist())


_SUMS = 4


def _digest(value: Any, size: int) -> int:
    return int.from_bytes(blake2b(repr(value).encode(), digest_size=size).digest())
