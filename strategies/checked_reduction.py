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

_ROUNDING = 0.99  # a sum of as many as there are ranks is rounded so often
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class CheckedReduction:
    """For ``FSDPModule.set_custom_reduce_scatter``: torch's own reduction, and a look at each contribution.

    A number too large to be summed over the ranks counts as not finite: else the rank whose shard it is in
    would be the only one to see.

    Args:
        most: What the gradients' own type can hold, if that is less than what they are reduced in can.
    """

    def __init__(self, device: torch.device, most: float) -> None:
        self._most = most
        self._found = torch.zeros((), device=device)
        self._looked = False

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for a contribution, or for what comes of all."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Reduce ``input_tensor``, which has an even part for each rank; rank i gets part i."""
        ranks = group.size()
        largest = _ROUNDING * min(torch.finfo(input_tensor.dtype).max, self._most) / ranks
        if input_tensor.is_cpu:
            if not _is_within(largest, input_tensor):
                input_tensor.view(ranks, -1)[:, 0] = math.nan
        else:  # which is not waited for; divided by True, numbers stay as they are
            fits = torch.linalg.vector_norm(input_tensor, math.inf) <= largest
            input_tensor.view(ranks, -1)[:, 0].div_(fits)
        work = _reduce_scatter(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
        if work is not None:
            work.wait()
        if not output_tensor.is_cpu:
            self._found.masked_fill_(~output_tensor[0].isfinite(), 1)
        elif not math.isfinite(output_tensor[0].item()):
            self._found.fill_(1)
        self._looked = True

    def look(self, found: Tensor) -> bool:
        """Make ``found`` 1 where a contribution since the last look was not finite, on all ranks.

        Returns:
            False where nothing was reduced here since.
        """
        looked = self._looked
        if looked:
            found.masked_fill_(self._found > 0, 1)  # fused optimizers take 1, and nothing above it
        self.forget()
        return looked

    def forget(self) -> None:
        """What was reduced so far has become other numbers, which are to be looked at themselves."""
        if self._looked:
            self._found.zero_()
        self._looked = False


def _is_within(largest: float, values: Tensor) -> bool:
    """Whether no magnitude is above ``largest``, nor NaN; for a CPU."""
    if torch.linalg.vector_norm(values).item() <= largest:  # the other norm takes 40 times as long
        return True
    return bool(torch.linalg.vector_norm(values, math.inf).item() <= largest)
