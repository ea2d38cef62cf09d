"""Which unit of a model is computed, and which units' gradients are complete."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from ..utils.nested import tensors_of


class UnitWatch:
    """Hooks on a module's units and parameters.

    Args:
        module: Its trained parameters are watched.
        units: The modules that strategies gather; the number of one is its place here.

    Attributes:
        unit: The one that is computed, or was last; -1 before the first.
        inside: Whether it is within that unit.
        finished: Bytes of gradients in units whose backward is complete, in the micro-batch under way.
    """

    def __init__(self, module: nn.Module, units: Sequence[nn.Module]) -> None:
        self.unit, self.finished, self.inside = -1, 0, False
        self._open: list[set[Tensor]] = []
        self._trained = [{p for p in unit.parameters() if p.requires_grad} for unit in units]
        self._counted = [sum(p.numel() * p.element_size() for p in own) for own in self._trained]
        owner = {p: number for number, own in enumerate(self._trained) for p in own}
        self._handles: list[Any] = []
        for parameter, number in owner.items():
            hook = partial(self._came, number)
            self._handles.append(parameter.register_post_accumulate_grad_hook(hook))
        for number, unit in enumerate(units):
            self._handles.append(unit.register_forward_pre_hook(partial(self._enter, number)))
            self._handles.append(unit.register_forward_hook(partial(self._leave, number)))

    def new_pass(self) -> None:
        """A forward comes next."""
        self.unit, self.finished, self.inside = -1, 0, False
        self._open = [set(own) for own in self._trained]

    def _enter(self, number: int, *_: Any) -> None:
        self.unit, self.inside = number, True

    def _leave(self, number: int, unit: nn.Module, given: Any, output: Any) -> None:
        self.inside = False
        # A hook on the output alone: one on the module would put another operation around it.
        for tensor in tensors_of(output):
            if tensor.requires_grad:
                tensor.register_hook(partial(self._enter, number))
                break

    def _came(self, number: int, parameter: Tensor) -> None:
        left = self._open[number]
        left.discard(parameter)
        if not left:
            self.finished += self._counted[number]
            self.inside = False

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
