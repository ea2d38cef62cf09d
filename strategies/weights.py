"""Where the weights of a module lie, and what is read of them and written to them, by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .ranks.collectives import Collectives
from .tensors import tensor_state as state
from .tensors.sharding import is_sharded, local_part, whole


class Weights:
    """The parameters of a module, their gradients and the optimizer's state. Here each rank holds all.

    ``ShardedWeights`` are those of which each rank holds a part. A strategy that keeps them in another way
    has its own subclass, and then checkpoints, averages of weights and exports are as of any other.

    Args:
        ranks: Who hold them together; None: this process is alone.

    Example:
        >>> weights = trainer.strategy.weights
        >>> sorted(weights.full_tensors(trainer.module))
        ['layer.bias', 'layer.weight']
        >>> weights.weight_norms(trainer.module)["layer.bias"].shape
        torch.Size([])
    """

    def __init__(self, ranks: Collectives | None = None) -> None:
        self.ranks = Collectives() if ranks is None else ranks

    def is_sharded(self, tensor: Tensor) -> bool:
        """Whether this rank holds a part only of a parameter, gradient or buffer."""
        return is_sharded(tensor)

    def full_tensors(self, module: nn.Module) -> dict[str, Tensor]:
        """The whole state dict, unsharded: what an export writes. To be called on all ranks."""
        return self.module_tensors(module)

    def full_gradients(self, module: nn.Module) -> dict[str, Tensor]:
        """The gradients ``on_before_optimizer_step`` sees, unsharded, by parameter name. On all ranks."""
        found = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
        return {name: whole(gradient) for name, gradient in found.items()}

    def gradient_norms(self, module: nn.Module) -> dict[str, Tensor]:
        """The 2-norm of each whole gradient, where ``full_gradients`` may be read. On all ranks."""
        found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        return {name: whole(torch.linalg.vector_norm(gradient)) for name, gradient in found.items()}

    def weight_norms(self, module: nn.Module) -> dict[str, Tensor]:
        """The 2-norm of each whole parameter. On all ranks."""
        found = {name: p.detach() for name, p in module.named_parameters()}
        return {name: whole(torch.linalg.vector_norm(weight)) for name, weight in found.items()}

    # -- values beside the parameters: averages of weights ---------------------------------------

    def parameter_parts(self, module: nn.Module) -> dict[str, Tensor]:
        """This rank's part of each parameter, by name: plain tensors that share its memory."""
        return {name: local_part(p.detach()) for name, p in module.named_parameters()}

    def parts_written(self, module: nn.Module, for_training: bool = False) -> None:
        """Let forward see what was written to the tensors of ``parameter_parts``. On all ranks.

        Args:
            module: Whose parameters were written.
            for_training: The next update begins from them: copies that an optimizer keeps change too.
        """

    def save_parts(self, module: nn.Module, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors like ``parameter_parts`` as ``module_tensors`` gives weights, to save. On all ranks."""
        return parts

    def load_parts(self, module: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """This rank's parts of what ``load_tensors`` read for parameters."""
        parameters = dict(module.named_parameters())
        return {name: local_part(tensor).to(parameters[name].device) for name, tensor in tensors.items()}

    # -- checkpoints ---------------------------------------------------------------------------

    def module_tensors(self, module: nn.Module) -> dict[str, Tensor]:
        """The tensors of ``module.state_dict()``, or this rank's parts of them as DTensors."""
        return state.module_tensors(module)

    def load_module(self, module: nn.Module, values: dict[str, Any]) -> None:
        """Take what ``load_tensors`` read, or whole tensors, and what else the state dict holds."""
        module.load_state_dict(values)

    def optimizer_state(
        self, module: nn.Module, optimizer: Optimizer
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Moments by ``<parameter>.<key>``, and the rest: groups and plain values, by parameter name."""
        return state.optimizer_state(module, optimizer)

    def load_optimizer(
        self, module: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor], plain: dict[str, Any]
    ) -> None:
        """Take back what ``optimizer_state`` gave of an optimizer with the same groups."""
        state.load_optimizer(module, optimizer, tensors, plain)

    def shard(self, folder: str, tensors: dict[str, Tensor], take: state.Take) -> state.Shard:
        """The part of ``tensors`` that this rank is to write into ``folder``. To be called on all ranks.

        Args:
            folder: The folder of the checkpoint; nothing is written here yet.
            tensors: By name; whole ones, or this rank's shards as DTensors. The same names on all ranks.
            take: Given a name and the rank's part of a tensor, returns what is to be written of it.
        """
        if self.ranks.group is None:
            taken = {name: take(name, tensor.detach()) for name, tensor in tensors.items()}
            return state.Shard(1, taken, {name: [0] * tensor.ndim for name, tensor in taken.items()})
        from .tensors.checkpoint_shards import collect

        return collect(folder, tensors, take, self.ranks.group)

    def load_tensors(
        self, files: Sequence[Path], names: Iterable[str], like: dict[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Read the tensors of ``names`` out of safetensors files.

        Args:
            files: The files of a checkpoint, one or more; no other file is opened.
            names: The tensors to read; each must be in one of the files.
            like: A sharded tensor is read in the shards of its namesake here; all else on the CPU.
        """
        return state.load_tensors(files, names, like, self.ranks.group)


class ShardedWeights(Weights):
    """Parameters that are DTensors: each rank holds the shards that their placements give it.

    Example:
        >>> strategy.weights = ShardedWeights(strategy.collectives)  # doctest: +SKIP
    """

    def save_parts(self, module: nn.Module, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        from torch.distributed.tensor import DTensor

        parameters: dict[str, Any] = dict(module.named_parameters())

        def placed(name: str, part: Tensor) -> Tensor:
            like = parameters[name]
            if not is_sharded(like):
                return part
            return DTensor.from_local(
                part, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
            )

        return {name: placed(name, part) for name, part in parts.items()}

    def load_module(self, module: nn.Module, values: dict[str, Any]) -> None:
        from torch.distributed.tensor import distribute_tensor

        mine: dict[str, Any] = self.module_tensors(module)

        def placed(name: str, value: Any) -> Any:
            shards = mine.get(name)  # None for a name that is not in the module, which torch reports
            is_whole = isinstance(value, Tensor) and not is_sharded(value)
            if shards is None or not is_whole or not is_sharded(shards):
                return value
            return distribute_tensor(value, shards.device_mesh, shards.placements, src_data_rank=None)

        super().load_module(module, {name: placed(name, value) for name, value in values.items()})

    def full_tensors(self, module: nn.Module) -> dict[str, Tensor]:
        return {
            name: whole(tensor).cpu() if is_sharded(tensor) else tensor
            for name, tensor in self.module_tensors(module).items()
        }
