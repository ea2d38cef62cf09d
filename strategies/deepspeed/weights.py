"""Where ZeRO's weights lie: whole or in its own partitions, masters and moments in flat tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..ranks.collectives import Collectives
from ..tensors import tensor_state as state
from ..weights import Weights
from . import internals, zero_state


class ZeroWeights(Weights):
    """The weights of a module that a ZeRO engine trains, between ``begin`` and ``end``.

    Args:
        ranks: Who hold them together.
        stage: Of ZeRO.
        offload: Whether gradients go to the host.
        factor: What gradients are still to be multiplied by.

    Attributes:
        groups: The names of the parameters in each group of the optimizer.
    """

    def __init__(
        self, ranks: Collectives, stage: int, offload: bool, factor: Callable[[], Tensor | float]
    ) -> None:
        super().__init__(ranks)
        self._stage, self._offload, self._factor = stage, offload, factor
        self._engine: Any = None
        self._module: nn.Module | None = None
        self.groups: list[list[str]] = []

    def begin(self, engine: Any, module: nn.Module, groups: list[list[str]]) -> None:
        """An engine trains a module from here on.

        Args:
            engine: As ``deepspeed.initialize`` returned it.
            module: The user's.
            groups: The names of the parameters in each group of the optimizer.
        """
        self._engine, self._module, self.groups = engine, module, groups
        self._turns = {name: turn for turn, (name, _) in enumerate(module.named_parameters())}

    def end(self) -> None:
        """The engine trains nothing more."""
        self._engine, self._module, self.groups = None, None, []

    def full_gradients(self, module: nn.Module) -> dict[str, Tensor]:
        from deepspeed.utils import safe_get_full_grad

        if self._stage < 2:  # averaged in the engine's own step only
            grads = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
            found = {
                name: self.ranks.all_reduce(grad) / self.ranks.world_size for name, grad in grads.items()
            }
        elif self._stage == 2 and self._offload:
            found = {}  # on their way to the host, where reading them would count them twice
        else:

            def read() -> dict[str, Any]:
                return {name: safe_get_full_grad(p) for name, p in module.named_parameters()}

            found = internals.finalised_gradients(self._engine, self._stage, read)
        factor = self._factor()
        return {name: grad * factor for name, grad in found.items() if grad is not None}

    def gradient_norms(self, module: nn.Module) -> dict[str, Tensor]:
        found = self.full_gradients(module).items()
        return {name: torch.linalg.vector_norm(gradient) for name, gradient in found}

    def weight_norms(self, module: nn.Module) -> dict[str, Tensor]:
        found = module.named_parameters()
        return {name: torch.linalg.vector_norm(zero_state.whole(p)) for name, p in found}

    def named(self) -> dict[Tensor, str]:
        """The name of each parameter of the module."""
        assert self._module is not None
        return {p: name for name, p in self._module.named_parameters()}

    def _is_mine(self, name: str) -> bool:
        """Whether this rank writes what is complete on none: they alternate, so that no host holds all."""
        return self._turns[name] % self.ranks.world_size == self.ranks.rank

    def module_tensors(self, module: nn.Module) -> dict[str, Tensor]:
        found = super().module_tensors(module)
        if self._engine is None or self._stage < 3:
            return found
        aliases = {p: n for n, p in module.named_parameters()}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            value = zero_state.whole(parameter)
            found[name] = value.cpu() if self._is_mine(aliases[parameter]) else value.to("meta")
        return found

    def parameter_parts(self, module: nn.Module) -> dict[str, Tensor]:
        if self._stage < 3:
            return super().parameter_parts(module)
        return {name: zero_state.partition(p) for name, p in module.named_parameters()}

    def parts_written(self, module: nn.Module, for_training: bool = False) -> None:
        if self._stage == 3:
            zero_state.refresh_whole_ones(list(module.parameters()))
        if for_training and self._stage:
            zero_state.write_masters(self._engine)

    def save_parts(self, module: nn.Module, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        if self._stage < 3:
            return parts
        parameters = dict(module.named_parameters())
        found = {}
        for name, part in parts.items():
            value = zero_state.assembled(parameters[name], part)
            found[name] = value.cpu() if self._is_mine(name) else value.to("meta")
        return found

    def load_parts(self, module: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if self._stage < 3:
            return super().load_parts(module, tensors)
        parameters = dict(module.named_parameters())
        return {name: zero_state.part_of(parameters[name], value) for name, value in tensors.items()}

    def full_tensors(self, module: nn.Module) -> dict[str, Tensor]:
        if self._engine is None and zero_state.HELD not in vars(module):
            return super().full_tensors(module)
        found = state.module_tensors(module)
        for name, parameter in module.named_parameters(remove_duplicate=False):
            value = zero_state.whole(parameter)
            found[name] = value.cpu() if self.ranks.is_global_zero else value.to("meta")
        return found

    def load_module(self, module: nn.Module, values: dict[str, Any]) -> None:
        if self._engine is None:
            super().load_module(module, values)
            return
        for name, buffer in module.named_buffers():
            if name in values:
                buffer.copy_(values[name])
        for name, value in values.items():
            path, _, last = name.rpartition(".")
            if last == "_extra_state":
                module.get_submodule(path).set_extra_state(value)
        zero_state.write_parameters(self._engine, self.named(), values)

    def optimizer_state(
        self, module: nn.Module, optimizer: Optimizer
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        found = zero_state.read_optimizer(self._engine, self.named(), self._is_mine)
        tensors = {f"{name}.{key}": value for name, one in found.items() for key, value in one.items()}
        groups = [
            {key: value for key, value in group.items() if key != "params"} | {"params": names}
            for group, names in zip(optimizer.param_groups, self.groups, strict=True)
        ]
        return tensors, {"groups": groups, "values": {}, "own_dtype": []}

    def load_optimizer(
        self, module: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor], plain: dict[str, Any]
    ) -> None:
        zero_state.write_optimizer(self._engine, self.named(), state.by_parameter(tensors, plain))
        for group, saved in zip(optimizer.param_groups, plain["groups"], strict=True):
            group.update({key: value for key, value in saved.items() if key not in state.OWN_SETTINGS})
