"""Whether ranks have the same values, seen in one small all-reduce, and what data they have read."""

from __future__ import annotations

import random
from functools import cache
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from ...errors import PacelineError
from .collectives import Collectives


def same_everywhere(ranks: Collectives, value: Any) -> bool:
    """Whether all ranks have equal values. To be called on all ranks; each gets the same answer.

    Args:
        ranks: All that take part.
        value: Plain data: its ``repr`` is compared, by a checksum of 56 bits.
    """
    [digest] = _digests(value, 1, 7)
    highest, lowest = ranks.all_reduce(torch.tensor([digest, -digest], device="cpu"), "max").tolist()
    return bool(highest == -lowest)


def same_in_tensor_groups(ranks: Collectives, value: Any) -> bool:
    """Whether the ranks of each tensor group have equal values. To be called on all ranks.

    A rank adds its checksum times a random factor, the first of each group takes off its own times the
    group's factors: the sum is zero where all are equal, and as good as never where some are not.

    Args:
        ranks: All that take part.
        value: Plain data: its ``repr`` is compared, by a checksum of 96 bits.
    """
    size, place = ranks.tensor_parallel_size, ranks.tensor_rank
    if size == 1:
        return True
    mine = [
        digest * (factors[place - 1] if place else -sum(factors))
        for digest, factors in zip(_digests(value, _SUMS, 3), _factors(ranks.data_rank, size), strict=True)
    ]
    return not any(ranks.all_reduce(torch.tensor(mine, device="cpu")).tolist())


def gather_alike(ranks: Collectives, value: Any) -> list[Any]:
    """What each data rank has read, in their order. To be called on all ranks.

    Args:
        ranks: All that take part.
        value: The same on all ranks that compute with the same samples.

    Raises:
        PacelineError: on all ranks, where it is not.
    """
    everyone = ranks.all_gather(value)
    found = ranks.one_per_data_rank(everyone)
    size = ranks.tensor_parallel_size
    for rank, other in enumerate(everyone):
        if other != found[rank // size]:
            raise PacelineError(
                f"ranks {rank - rank % size} and {rank} split each layer between them, and read other data",
                code="ranks-read-differently",
                fix="give both the same data: divide it by data_rank and data_world_size of trainer.ranks, "
                "not by rank and world size, and draw from torch, random or numpy, which are seeded",
            )
    return found


def require_alike(ranks: Collectives, value: Any) -> None:
    """See that ranks that split each layer have read the same. To be called on all ranks.

    Args:
        ranks: All that take part.
        value: Of this rank; plain data.

    Raises:
        PacelineError: on all ranks, naming two that have not.
    """
    if not same_in_tensor_groups(ranks, value):
        gather_alike(ranks, value)


def total_read(ranks: Collectives, numbers: Tensor) -> Tensor:
    """What all data ranks have read together. To be called on all ranks.

    Args:
        ranks: All that take part.
        numbers: Counts of this rank, of one shape on all.

    Raises:
        PacelineError: on all ranks, where ranks that split each layer have read other data.
    """
    require_alike(ranks, numbers.tolist())
    return ranks.all_reduce(numbers if ranks.tensor_rank == 0 else torch.zeros_like(numbers))


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
