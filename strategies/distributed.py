"""What all strategies over a process group share: joining it, and averages of gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import PacelineError
from .dtypes.precision import Precision
from .estimate.description import Description
from .launch.environment import Environment
from .launch.process_group import join
from .ranks.group_collectives import GroupCollectives
from .single import Single
from .sync_batchnorm import SyncedBatchNorms
from .trained import TrainedChange
from .weights import Weights


class Distributed(Single):
    """The base of strategies on several ranks; write a new strategy as a subclass of it.

    As it is, it computes like ``Single`` on each rank and leaves the gradients alone. A subclass reduces
    them: what the last ``backward`` of a step leaves in ``.grad`` must be the mean over the ranks. (Not in
    ``unscale``, which is called only where something reads the gradients before the update.)
    ``paceline.testing.check_strategy`` checks it.

    Example:
        >>> class AverageOnce(Distributed):
        ...     name = "average_once"
        ...     def setup(self, module, build_optimizers):
        ...         self.prepare_module(module)
        ...         self.last, self.trained = True, [p for p in module.parameters() if p.requires_grad]
        ...         return build_optimizers()
        ...     def synchronise_gradients(self, enabled):
        ...         self.last = enabled  # False for all but the last micro-batch of a step
        ...     def backward(self, loss):
        ...         super().backward(loss)
        ...         if self.last:
        ...             self.average_gradients(self.trained)
        >>> strategy = AverageOnce()  # Trainer(strategy=strategy, devices=8)
    """

    many_ranks = True
    repeats_steps = False

    def attach(self, environment: Environment, precision: Precision) -> None:
        super().attach(environment, precision)
        if not environment.starts:
            join(environment, self.settings.collective_timeout)
            self.collectives = GroupCollectives(environment, checks=self.settings.debug)
            self.weights = Weights(self.collectives)

    @property
    def description(self) -> Description:
        return Description(self.many_ranks, smaller='strategy="fsdp"')

    def prepare_module(self, module: nn.Module, *, in_shards: bool = False) -> None:
        """What is done with a module first: values, dtype, device, batch norms; rank 0's values on all."""
        super().prepare_module(module, in_shards=in_shards)
        if self.settings.sync_batchnorm:
            self._batchnorms = SyncedBatchNorms(module)
        self._broadcast_tensors([*module.parameters(), *module.buffers()])

    def trainable_changed(self, module: nn.Module, change: TrainedChange) -> None:
        raise PacelineError(
            f"strategy {self.name!r} fixes at the start which parameters are trained",
            code="trained-parameters-fixed",
            got=str(change),
            fix="strategy='ddp' follows every change; else make it before fit, or in on_setup",
        )

    def _broadcast_tensors(self, tensors: list[Tensor]) -> None:
        if self.environment.world_size > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), 0)

    def average_gradients(self, parameters: list[Tensor], most: float = math.inf) -> list[bool]:
        """Average gradients over all ranks, in one collective for each dtype, in ``reduce_dtype``.

        A parameter without a gradient counts as zeros where another rank has one.

        Args:
            parameters: The same ones on every rank, in the same order; their ``.grad`` is replaced.
            most: Begin another collective after so many bytes: each needs as much memory again.

        Returns:
            For each parameter whether it has a gradient on any rank.
        """
        used = [False] * len(parameters)
        for indices in _batched(parameters, most):
            mine = [parameters[i] for i in indices]
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in mine]
            present = mine[0].new_tensor([p.grad is not None for p in mine])
            flat = torch.cat([*(g.reshape(-1) for g in grads), present])
            flat = flat.to(torch.promote_types(mine[0].dtype, self.precision.reduce_dtype))
            dist.all_reduce(flat)
            flat /= self.environment.world_size
            *means, somewhere = flat.split([*(p.numel() for p in mine), len(mine)])
            for index, parameter, mean, any_rank in zip(
                indices, mine, means, somewhere.tolist(), strict=True
            ):
                used[index] = any_rank > 0
                dtype = getattr(parameter, "grad_dtype", None) or parameter.dtype  # torch 2.9 has none
                parameter.grad = mean.view_as(parameter).to(dtype) if any_rank else None
        return used

    @contextmanager
    def evaluation(self, module: nn.Module) -> Iterator[None]:
        self._broadcast_tensors(list(module.buffers()))  # rank 0's running statistics are the run's
        yield

    def close(self) -> None:
        super().close()
        batchnorms = self.__dict__.pop("_batchnorms", None)
        if batchnorms is not None:
            batchnorms.undo()


def _batched(tensors: list[Tensor], most: float) -> list[list[int]]:
    """Indices of tensors of one dtype and of ``most`` bytes together, or one larger one."""
    batches: list[list[int]] = []
    open_ones: dict[torch.dtype, tuple[list[int], float]] = {}
    for index, tensor in enumerate(tensors):
        batch, size = open_ones.get(tensor.dtype, ([], math.inf))
        if size + tensor.nbytes > most or not batch:
            batch, size = [], 0.0
            batches.append(batch)
        batch.append(index)
        open_ones[tensor.dtype] = (batch, size + tensor.nbytes)
    return batches
