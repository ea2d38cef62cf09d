"""Watches the updates of the optimizers: gradients, rates, and how far weights move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .seen import ParameterFacts, Phase, Seen, UpdateFacts

_SAMPLE = 256
_MOST_UPDATES = 200
_HELD, _HELD_SIZE = 8, 65536


class UpdateWatch:
    """Fills parameters and updates of ``Seen`` while it is active: after the step the device is waited for.

    Args:
        seen: What it fills.
        failed: Called with an error of its own, which does not reach the run.
    """

    def __init__(self, seen: Seen, failed: Callable[[Exception], None]) -> None:
        self._seen, self._failed = seen, failed
        self._handles: list[Any] = []
        self._phase: Phase = "train"
        self._before: dict[str, Tensor] = {}
        self._first: dict[str, Tensor] = {}
        self._gradients: dict[int, dict[int, Tensor]] = {}
        self._names: dict[int, str] = {}

    def take_parameters(self) -> None:
        """Know the parameters and their first values, before the first step."""
        optimized = {id(p) for one in self._seen.trainer.optimizers for p in parameters_of(one)}
        for name, parameter in self._seen.module.named_parameters():
            self._names[id(parameter)] = name
            self._seen.parameters[name] = ParameterFacts(parameter, id(parameter) in optimized)
            if parameter.requires_grad:
                self._first[name] = _sample(parameter)

    def begin(self, phase: Phase) -> None:
        """Watch what follows."""
        self._phase = phase
        if not self._handles:
            self._handles = [
                register_optimizer_step_pre_hook(self._before_update),
                register_optimizer_step_post_hook(self._after_update),
            ]

    def end(self) -> None:
        """Watch no longer."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def close(self) -> None:
        """Watch no longer, and keep no tensors."""
        self.end()
        self._before.clear()
        self._first.clear()
        self._gradients.clear()

    def compare_with_first(self) -> None:
        """Note which parameters have changed since the fit began."""
        for name, first in self._first.items():
            facts = self._seen.parameters[name]
            if not facts.changed:
                facts.changed = not torch.equal(first, _sample(facts.parameter))

    def _before_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        try:
            with torch.no_grad():
                self._note_update(optimizer)
        except Exception as error:
            self._failed(error)

    def _note_update(self, optimizer: Optimizer) -> None:
        if len(self._seen.updates) >= _MOST_UPDATES:
            return
        step, parameters = self._seen.step + 1, list(parameters_of(optimizer))
        gradients = [p.grad for p in parameters]
        # Not zeroed, a gradient is the same object. A few small ones are held, so that none is made in
        # the place of one that was dropped.
        held = self._gradients.get(id(optimizer), {})
        carried = sum(gradients[i] is old for i, old in held.items() if i < len(gradients))
        small = [(i, g) for i, g in enumerate(gradients) if g is not None and g.numel() <= _HELD_SIZE]
        self._gradients[id(optimizer)] = dict(small[:_HELD])
        norms = [None if g is None else _norm(g) for g in gradients]
        known = [n for n in norms if n is not None]
        numbers = iter(torch.stack(known).tolist() if known else [])
        values = [None if n is None else next(numbers) for n in norms]
        norm = sum(v * v for v in values if v is not None) ** 0.5
        rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        self._seen.updates.append(UpdateFacts(optimizer, self._phase, step, rates, carried, norm))
        if self._phase != "train":
            return
        for parameter, value in zip(parameters, values, strict=True):
            name = self._names.get(id(parameter))
            if name is None:
                continue
            facts = self._seen.parameters[name]
            facts.updates += 1
            facts.gradients += value is not None
            facts.nonzero += bool(value)
            facts.gradient_norms.append(value or 0.0)
            self._before[name] = _sample(parameter)

    def _after_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        try:
            with torch.no_grad():
                self._note_change()
        except Exception as error:
            self._failed(error)

    def _note_change(self) -> None:
        before, self._before = self._before, {}
        sizes = []
        for name, old in before.items():
            new = self._seen.parameters[name].parameter
            change, size = (_sample(new) - old).norm(), old.norm()
            sizes += [change.float(), size.float()]
        numbers = torch.stack(sizes).tolist() if sizes else []
        for name, change, size in zip(before, numbers[::2], numbers[1::2], strict=True):
            self._seen.parameters[name].relative.append(change / size if size else float(change > 0))

    def note_unoptimized(self) -> None:
        """After a backward pass: count gradients of trainable parameters that no optimizer has."""
        for facts in self._seen.parameters.values():
            if not facts.optimized and facts.parameter.requires_grad:
                facts.updates += 1
                facts.gradients += facts.parameter.grad is not None


def parameters_of(optimizer: Any) -> Iterator[nn.Parameter]:
    """The parameters of an optimizer's groups."""
    for group in getattr(optimizer, "param_groups", ()):
        yield from group["params"]


@torch.no_grad()
def _sample(parameter: Tensor) -> Tensor:
    """A copy of some values, spread over the parameter."""
    local = getattr(parameter, "to_local", None)
    values = parameter.detach() if local is None else local().detach()
    if not values.is_contiguous():
        values = values[:1] if values.dim() else values
    flat = values.reshape(-1)
    sample: Tensor = flat[:: max(1, flat.numel() // _SAMPLE)][:_SAMPLE].clone()
    return sample


def _norm(gradient: Tensor) -> Tensor:
    local = getattr(gradient, "to_local", None)
    plain: Tensor = gradient if local is None else local()
    if plain.layout is not torch.strided:
        plain = plain.coalesce().values()
    return torch.linalg.vector_norm(plain.detach(), dtype=torch.float32).cpu()
