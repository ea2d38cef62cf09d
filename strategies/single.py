"""One device: the null case, and the strategy to read first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..common.argument_checks import SWITCH_OR_TEXTS, check_arguments, one_of
from .base import Strategy, parameters_of
from .blocks.activations import SELECTIVE, Activations
from .blocks.materialise import is_on_meta, materialise
from .gradients.accumulation import WideAccumulation
from .gradients.finite_gradients import flag_nonfinite
from .module_checks import refuse_sharded
from .settings import ActivationOptions
from .torch_internals import multiply_each

T = TypeVar("T")


class Single(Strategy):
    """Computes on one device of any kind ``torch.accelerator`` knows, or on the CPU.

    Args:
        activation_checkpointing: Compute the activations of the repeated blocks again in backward:
            all (True), or all but the results of matrix products and attention (``"selective"``).
        activation_offload: Keep the activations of the repeated blocks (True), or of submodules by name
            (``["blocks.*"]``), in the host's memory until backward.

    Example:
        >>> trainer = Trainer(strategy=Single(activation_checkpointing=True), devices=1)
    """

    name = "single"
    repeats_steps = True
    _accumulation: WideAccumulation | None = None
    _activations: Activations | None = None

    def __init__(
        self,
        *,
        activation_checkpointing: bool | str = False,
        activation_offload: bool | str | Sequence[str] = False,
    ) -> None:
        check_arguments(
            type(self).__name__,
            activation_checkpointing=(activation_checkpointing, one_of(False, True, SELECTIVE)),
            activation_offload=(activation_offload, SWITCH_OR_TEXTS),
        )
        self.activations = ActivationOptions(activation_checkpointing, activation_offload)

    def setup(self, module: nn.Module, build_optimizers: Callable[[], T]) -> T:
        self.prepare_module(module)
        return build_optimizers()

    def prepare_module(self, module: nn.Module, *, in_shards: bool = False) -> None:
        """Prepare a module for a run: initial values of meta tensors, dtype, device, recomputation.

        Args:
            module: Changed in place.
            in_shards: Parts of it are sharded already, as this strategy does.

        Raises:
            PacelineError: for a module that an earlier run has left in shards.
        """
        if not in_shards:
            refuse_sharded(module)
        if is_on_meta(module):
            materialise(module)
        self.precision.convert_module(module)
        module.to(self.device)
        if self.settings.channels_last:
            _to_channels_last(module)
        self._accumulation = WideAccumulation(module, self.precision.accumulate_dtype)
        self.change_activations(module)

    def change_activations(self, module: nn.Module) -> None:
        """Compute activations again, or keep them on the host, as ``activations`` says; until ``close``."""
        self._activations = Activations(module, self.activations.checkpointing, self.activations.offload)

    def step_function(self, module: nn.Module, name: str) -> Callable[..., Any]:
        step: Callable[..., Any] = getattr(module, name)
        context = self.precision.context(self.device)
        if context is None:
            return step

        def step_in_context(*args: Any) -> Any:
            with context():
                return step(*args)

        return step_in_context

    def begin_accumulation(self) -> None:
        if self._accumulation is not None:
            self._accumulation.begin()

    def finish_accumulation(self) -> None:
        if self._accumulation is not None:
            self._accumulation.finish()

    def discard_gradients(self, optimizer: Optimizer) -> None:
        optimizer.zero_grad()
        self.finish_accumulation()

    def backward(self, loss: Tensor, retain_graph: bool = False) -> None:
        if self.precision.scales:
            loss = self.precision.scale(loss)
        loss.backward(retain_graph=retain_graph)

    def unscale(self, optimizer: Optimizer) -> None:
        self.precision.unscale(optimizer)

    def find_nonfinite(self, optimizer: Optimizer, found: Tensor) -> bool:
        grads = self.own_gradients(optimizer)
        if not grads:
            return True
        flag_nonfinite(grads, found, self._one)
        return True

    @cached_property
    def _one(self) -> Tensor:
        return torch.ones((), device=self.device)

    def own_gradients(self, optimizer: Optimizer) -> list[Tensor]:
        """The gradients of ``optimizer`` that this rank has, shards as plain tensors."""
        found = []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None:
                    found.append(gradient)
        return found

    def multiply_gradients(self, optimizer: Optimizer, factor: Tensor | float) -> None:
        grads = self.own_gradients(optimizer)
        if grads:
            multiply_each(grads, factor)

    def clip(self, optimizer: Optimizer, norm: float | None, value: float | None) -> Tensor | None:
        parameters, total = parameters_of(optimizer), None
        if norm is not None:
            total = nn.utils.clip_grad_norm_(parameters, norm)
        if value is not None:
            nn.utils.clip_grad_value_(parameters, value)
        return total

    def update(self, optimizer: Optimizer) -> bool:
        if not self.precision.is_unscaled(optimizer):
            self.unscale(optimizer)
        return self.precision.step(optimizer)

    def step(self, optimizer: Optimizer) -> bool:
        applied = True
        if self.precision.scales:
            applied = self.update(optimizer)
            self.precision.update()
        else:
            optimizer.step()
        optimizer.zero_grad()  # to None, unless a subclass does otherwise
        return applied

    def skip(self, optimizer: Optimizer) -> None:
        self.precision.skip(optimizer)
        optimizer.zero_grad()

    def close(self) -> None:
        if self._activations is not None:
            self._activations.undo()
        self._activations = None
        self.finish_accumulation()  # where a step failed
        self._accumulation = None
        vars(self).pop("_one", None)


def _to_channels_last(module: nn.Module) -> None:
    """Give 4-D and 5-D parameters and buffers the memory format with the channels last."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.ndim in formats:
            tensor.data = tensor.data.contiguous(memory_format=formats[tensor.ndim])
