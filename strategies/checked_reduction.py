"""FSDP's reduction of gradients, which tells every rank when those of one are not finite.

Each rank gets the sum of its own shards only. Asking the others about theirs would be one more point of
each step where ranks wait for each other. Instead a rank marks what it contributes: a number in each rank's
part of it becomes infinite or NaN, and so does the sum that each rank gets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class CheckedReduction:
    """For ``FSDPModule.set_custom_reduce_scatter``: torch's own reduction, and a look at each contribution.

    A number too large to be summed over the ranks counts as not finite: else the rank whose shard it is in
    would be the only one to see.

    Args:
        checks: False: it only reduces.
    """

    def __init__(self, device: torch.device, checks: bool) -> None:
        self._checks = checks
        self._found = torch.zeros((), device=device)
        self._looked = False

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for a contribution, or for what comes of all."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Reduce ``input_tensor``, which has an even part for each rank; rank i gets part i."""
        if self._checks:
            _mark(input_tensor, group.size())
        work = _reduce_scatter(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
        if work is not None:
            work.wait()
        if self._checks:
            self._found += ~output_tensor[0].isfinite()
            self._looked = True

    def look(self, found: Tensor) -> bool:
        """Raise ``found`` above 0 where a contribution since the last look was not finite, on all ranks.

        Returns:
            False where nothing was reduced here since.
        """
        looked, self._looked = self._looked, False
        if looked:
            found += self._found
            self._found.zero_()
        return looked


def _mark(values: Tensor, ranks: int) -> None:
    """Make the first number of each rank's part infinite or NaN where one of all cannot be summed."""
    largest = torch.finfo(values.dtype).max / ranks
    values.view(ranks, -1)[:, 0].div_(_size_of(values, largest) <= largest)  # by True: it stays as it is


def _size_of(values: Tensor, largest: float) -> Tensor:
    """At least the largest magnitude, and exactly that where it is above ``largest``; NaN with a NaN."""
    if values.is_cpu:  # where the other norm takes 40 times as long
        norm: Tensor = torch.linalg.vector_norm(values)
        if norm <= largest:
            return norm
    most: Tensor = torch.linalg.vector_norm(values, math.inf)
    return most
