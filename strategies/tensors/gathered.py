"""An all-gather through which gradients flow back to each rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


class Gathered(torch.autograd.Function):
    """Every rank's tensor on each; backward sums what the losses of all ranks give for this rank's.

    Example:
        >>> everyone = Gathered.apply(embeddings, None)  # doctest: +SKIP
    """

    @staticmethod
    def forward(context: Any, value: Tensor, group: Any) -> tuple[Tensor, ...]:
        context.group = group
        tensors = [torch.empty_like(value) for _ in range(dist.get_world_size(group))]
        dist.all_gather(tensors, value.contiguous(), group=group)
        return tuple(tensors)

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        of_all = torch.stack(gradients)
        dist.all_reduce(of_all, group=context.group)
        return of_all[dist.get_rank(context.group)], None
