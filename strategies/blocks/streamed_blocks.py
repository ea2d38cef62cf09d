"""Blocks of a module that are on the device for their own forward alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..tensors.stored_tensors import Stored, read

Values = dict[Tensor, Stored]
"""What parameters and buffers are to hold."""
_Place = tuple[nn.Module, str]


class _Copy(NamedTuple):
    """A block's parameters on the device; those of an accelerator are there once ``event`` has happened."""

    values: dict[Tensor, nn.Parameter]
    event: Any = None


class Blocks:
    """Streams the parameters of blocks to a device; the rest of the module, and all buffers, stay there.

    A parameter that is used outside the blocks too stays with the rest.

    Args:
        module: The whole module. Its parameters may be on the meta device.
        units: The blocks; those inside another one come with it.
        device: Where they compute.
    """

    def __init__(self, module: nn.Module, units: Sequence[nn.Module], device: torch.device) -> None:
        self._module, self._device = module, device
        inner = {id(part) for unit in units for part in unit.modules() if part is not unit}
        outer = [unit for unit in units if id(unit) not in inner]
        inside = {id(part) for unit in outer for part in unit.modules()}
        rest = {p for part in module.modules() if id(part) not in inside for _, p in _parameters(part)}
        self._places: dict[nn.Module, list[_Place]] = {
            unit: [(part, key) for part in unit.modules() for key, p in _parameters(part) if p not in rest]
            for unit in outer
        }
        self._next = dict(zip(outer, [*outer[1:], outer[0]], strict=True))
        self._last: nn.Module | None = None
        self._stored: Values = {}
        self._ahead: dict[nn.Module, _Copy] = {}
        self._busy: list[_Copy] = []
        self._replaced: list[tuple[nn.Module, str, Tensor]] = []
        self._forwards: dict[nn.Module, Any] = {}
        self._stream = None if device.type == "cpu" else torch.Stream(device)

    def parameters(self) -> set[Tensor]:
        """Those that are streamed."""
        return {getattr(*place) for places in self._places.values() for place in places}

    def place(self) -> None:
        """Put the rest on the device and the blocks into the host's memory, and stream them from now on."""
        _move(self._module, self._device, except_for=self.parameters())
        for parameter in self.parameters():
            if not parameter.is_meta:
                parameter.data = self._pinned(parameter.data.cpu())
        for unit in self._places:
            self._forwards[unit] = vars(unit).get("forward")
            vars(unit)["forward"] = partial(self._forward, unit, unit.forward)

    def load(self, given: Values, on_disk: bool) -> None:
        """Take values for parameters and buffers, converted to their dtypes.

        Args:
            given: By the tensor that is to hold them.
            on_disk: Blocks have no memory, and are read for each of their forwards.
        """
        streamed = self.parameters()
        for target, stored in given.items():
            if on_disk and target in streamed:
                self._stored[target] = stored
            elif target.is_meta:
                device = torch.device("cpu") if target in streamed else self._device
                fresh = torch.empty(target.shape, dtype=target.dtype, device=device)
                fresh = self._pinned(fresh) if target in streamed else fresh
                read(stored, fresh)
                self._replace(target, fresh)
            else:
                read(stored, target)

    def without_values(self) -> list[str]:
        """The names of parameters and buffers that nothing gave values to."""
        named = (*self._module.named_parameters(), *self._module.named_buffers())
        return [name for name, tensor in named if tensor.is_meta and tensor not in self._stored]

    def give_back(self, empty: bool) -> None:
        """Leave the module on the host, as far as it has values.

        Args:
            empty: What came from the meta device returns to it.
        """
        for unit, forward in self._forwards.items():
            vars(unit).pop("forward")
            if forward is not None:
                vars(unit)["forward"] = forward
        self._wait()
        self._ahead.clear()
        self._stored.clear()
        if empty:
            for owner, key, tensor in self._replaced:
                setattr(owner, key, tensor)
        _move(self._module, torch.device("cpu"))

    # -- a forward -----------------------------------------------------------------------------

    def _forward(self, unit: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        copy = self._arrived(unit)
        own = [(owner, key, getattr(owner, key)) for owner, key in self._places[unit]]
        try:
            for owner, key, parameter in own:
                setattr(owner, key, copy.values[parameter])
            return forward(*args, **kwargs)
        finally:
            for owner, key, parameter in own:
                setattr(owner, key, parameter)
            if self._stream is not None:
                self._busy.append(_Copy(copy.values, _current(self._device).record_event()))

    def _arrived(self, unit: nn.Module) -> _Copy:
        """The block's copy; where blocks are in the host's memory, that of the next one is begun."""
        self._wait()  # so that never more than two are there
        if self._last is not None:
            self._next[self._last] = unit
        self._last = unit
        copy = self._ahead.pop(unit, None)
        self._ahead.clear()
        copy = copy or self._begin(unit)
        following = self._next[unit]
        if not self._stored:
            self._ahead[following] = self._begin(following)
        if copy.event is not None:
            _current(self._device).wait_event(copy.event)
        return copy

    def _begin(self, unit: nn.Module) -> _Copy:
        parameters = dict.fromkeys(getattr(*place) for place in self._places[unit])
        if self._stream is None or self._stored:
            return _Copy({p: _parameter(self._copied(p)) for p in parameters})
        with self._stream:
            values = {p: _parameter(p.detach().to(self._device, non_blocking=True)) for p in parameters}
            return _Copy(values, self._stream.record_event())

    def _copied(self, parameter: Tensor) -> Tensor:
        if parameter not in self._stored:
            return parameter.detach().to(self._device)
        fresh = torch.empty(parameter.shape, dtype=parameter.dtype, device=self._device)
        read(self._stored[parameter], fresh)
        return fresh

    def _wait(self) -> None:
        """Release copies that were computed with: the copying stream may use their memory again."""
        for copy in self._busy:
            copy.event.synchronize()
        self._busy.clear()

    # -- tensors in their places ---------------------------------------------------------------

    def _pinned(self, tensor: Tensor) -> Tensor:
        return tensor if self._stream is None else tensor.pin_memory()

    def _replace(self, target: Tensor, fresh: Tensor) -> None:
        made = nn.Parameter(fresh, target.requires_grad) if isinstance(target, nn.Parameter) else fresh
        for part in self._module.modules():
            for key, tensor in (*_parameters(part), *part.named_buffers(recurse=False)):
                if tensor is target:
                    setattr(part, key, made)
                    self._replaced.append((part, key, target))


def _parameters(part: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return part.named_parameters(recurse=False, remove_duplicate=False)


def _parameter(tensor: Tensor) -> nn.Parameter:
    """One without a gradient: autocast would keep its copy of it for the length of a step."""
    return nn.Parameter(tensor, requires_grad=False)


def _current(device: torch.device) -> Any:
    return torch.accelerator.current_stream(device)


def _move(module: nn.Module, device: torch.device, except_for: Iterable[Tensor] = ()) -> None:
    """Move parameters and buffers that have values, in place; tied ones stay tied."""
    kept = set(except_for)
    for parameter in module.parameters():
        if parameter not in kept and not parameter.is_meta:
            parameter.data = parameter.data.to(device)
    moved: dict[Tensor, Tensor] = {}
    for part in module.modules():
        for key, buffer in list(part.named_buffers(recurse=False)):
            if not buffer.is_meta:
                moved.setdefault(buffer, buffer.to(device))
                setattr(part, key, moved[buffer])
