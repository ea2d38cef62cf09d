"""Batch norms whose statistics are those of the samples of all ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import BatchNorm1d, BatchNorm2d, BatchNorm3d


class SyncedBatchNorms:
    """Turns a module's batch norms into synchronised ones, in place, until ``undo``.

    Names, parameters and buffers stay; only the class of each batch norm changes.

    Args:
        module: Its batch norms are meant.
        group: The process group of ranks with different samples; None: all ranks.
    """

    def __init__(self, module: nn.Module, group: Any = None) -> None:
        self._before: list[tuple[Any, type]] = []
        on_cpu = all(p.is_cpu for p in module.parameters())
        for part in module.modules():
            if isinstance(part, (BatchNorm1d, BatchNorm2d, BatchNorm3d)):
                self._before.append((part, type(part)))
                vars(part)["process_group"] = group
                kind: Any = SyncedOnCPU if on_cpu else nn.SyncBatchNorm
                part.__class__ = kind

    def undo(self) -> None:
        """Give the batch norms their own class back."""
        for part, kind in self._before:
            part.__class__ = kind
            vars(part).pop("process_group", None)


class SyncedOnCPU(BatchNorm1d):
    """What ``nn.SyncBatchNorm`` does, on a CPU, where torch has none. For any number of dimensions."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Any dimension: the class this stands in for has checked its own."""

    def forward(self, input: Tensor) -> Tensor:
        group = vars(self)["process_group"] or dist.group.WORLD
        if not self.training or dist.get_world_size(group) == 1:
            return super().forward(input)
        from torch.distributed.nn.functional import all_reduce

        wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        dims = [0, *range(2, input.ndim)]
        shape = [1, -1, *[1] * (input.ndim - 2)]
        here = wide.new_tensor([input.numel() / input.size(1)])
        sums: Tensor = all_reduce(torch.cat([wide.sum(dims), here]), group=group)
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = wide - mean.view(shape)
        # A second pass over the centred values: a difference of large sums would lose digits.
        variance: Tensor = all_reduce(centred.square().sum(dims), group=group) / count
        if self.track_running_stats:
            self._track(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        scale = torch.rsqrt(variance + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        result = centred * scale.view(shape)
        if self.bias is not None:
            result = result + self.bias.view(shape)
        return result.to(input.dtype)

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)
