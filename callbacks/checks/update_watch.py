"""Watches the updates of the optimizers: gradients, rates, and how far weights move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .layer_watch import LayerWatch
from .seen import ParameterFacts, Phase, Seen, UpdateFacts
from .tensor_facts import is_readable

_SAMPLE = 256
_MOST_UPDATES = 200


class UpdateWatch:
    """Fills parameters and updates of ``Seen`` while it is active: after the step the device is waited for.

    Args:
        seen: What it fills.
        layers: Its ``taking_notes`` marks calls that are none of the run.
        failed: Called with its errors, which do not reach the run.
    """

    def __init__(self, seen: Seen, layers: LayerWatch, failed: Callable[[Exception], None]) -> None:
        self._seen, self._layers, self._failed = seen, layers, failed
        self._handles: list[Any] = []
        self._phase: Phase = "train"
        self._before: dict[str, Tensor] = {}
        self._first: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        self._fresh = FreshGradients()
        self._ages: dict[int, float] = {}
        self._last_step = 0

    def take_parameters(self) -> None:
        """Know the parameters and their first values, before the first step."""
        optimized = {id(p) for one in self._seen.trainer.optimizers for p in parameters_of(one)}
        for name, parameter in self._seen.module.named_parameters():
            facts = ParameterFacts(parameter, id(parameter) in optimized)
            self._seen.parameters[name] = facts
            if is_readable(_local(parameter)):
                self._names[id(parameter)] = name
                self._first[name] = _sample(parameter)
            else:
                facts.changed = True  # as far as anybody can see
        for optimizer in self._seen.trainer.optimizers:
            self._note_state(optimizer)

    def begin(self, phase: Phase) -> None:
        """Watch what follows."""
        self._phase = phase
        if self._seen.step > self._last_step + 1:
            self._fresh.clear()
        self._fresh.begin_step()
        self._last_step = self._seen.step
        if not self._handles:
            self._handles = [
                register_optimizer_step_pre_hook(self._before_update),
                register_optimizer_step_post_hook(self._after_update),
            ]
            if not getattr(self._seen.module, "automatic_optimization", True):
                for one in self._seen.trainer.optimizers:
                    self._handles += self._fresh.watch(one, parameters_of(one))

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
        self._fresh.clear()

    def compare_with_first(self, frozen: bool = False) -> None:
        """Note which parameters have changed since the fit began; frozen ones only on request."""
        for name, first in self._first.items():
            facts = self._seen.parameters[name]
            if not facts.changed and (frozen or facts.parameter.requires_grad):
                facts.changed = not torch.equal(first, _sample(facts.parameter))
            if frozen and facts.parameter.requires_grad and bool(first.any()):
                facts.size_left = float(_sample(facts.parameter).norm() / first.norm())

    def look_at_states(self, number: int) -> None:
        """Before a step: note optimizers that have lost their state."""
        if any(self._has_lost_state(one) for one in self._seen.trainer.optimizers):
            self._seen.emptied.append(number)
        for one in self._seen.trainer.optimizers:
            self._note_state(one)

    def _has_lost_state(self, optimizer: Any) -> bool:
        lost = _age_of(optimizer) < self._ages.get(id(optimizer), 0)
        if lost:
            self._ages.pop(id(optimizer))
        return lost

    def _note_state(self, optimizer: Any) -> None:
        self._ages[id(optimizer)] = _age_of(optimizer)

    def _before_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        try:
            with self._layers.taking_notes():
                self._note_update(optimizer)
        except Exception as error:
            self._failed(error)

    def _note_update(self, optimizer: Optimizer) -> None:
        if len(self._seen.updates) >= _MOST_UPDATES:
            return
        step, parameters = self._seen.step + 1, list(parameters_of(optimizer))
        gradients = [p.grad for p in parameters]
        norms = [None if g is None else _norm(g) for g in gradients]
        known = [n for n in norms if n is not None]
        numbers = iter(torch.stack(known).tolist() if known else [])
        values = [None if n is None else next(numbers) for n in norms]
        norm = sum(v * v for v in values if v is not None) ** 0.5
        rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        facts_of_all = UpdateFacts(optimizer, self._phase, step, rates, norm)
        facts_of_all.count = sum(g.numel() for g in gradients if g is not None)
        facts_of_all.emptied = self._has_lost_state(optimizer)
        facts_of_all.stale = self._fresh.is_stale(optimizer)
        self._seen.updates.append(facts_of_all)
        if self._phase != "train":
            return
        cosines = torch.stack([_cosine(p) for p in parameters]).tolist() if parameters else []
        for parameter, value, cosine in zip(parameters, values, cosines, strict=True):
            name = self._names.get(id(parameter))
            if name is None:
                continue
            facts = self._seen.parameters[name]
            facts.updates += 1
            facts.gradients += value is not None
            facts.nonzero += bool(value)
            facts.gradient_norms.append(value or 0.0)
            facts.alignment.append(cosine)
            self._before[name] = _sample(parameter)

    def _after_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        try:
            with self._layers.taking_notes():
                self._note_change()
                self._note_state(optimizer)
                self._fresh.note_update(optimizer)
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


class FreshGradients:
    """Knows of a few small parameters of each optimizer which gradients came since its last update."""

    def __init__(self) -> None:
        self._parameters: dict[int, list[nn.Parameter]] = {}
        self._fresh: dict[int, Tensor] = {}
        self._since_others: dict[int, Tensor] = {}
        self._used: dict[int, Tensor] = {}
        self._earlier: set[int] = set()

    def watch(self, optimizer: Any, parameters: Iterator[nn.Parameter]) -> list[Any]:
        """Watch the gradients of some of its parameters: the handles to stop it by."""
        whole = [p for p in parameters if p.requires_grad and p.is_leaf and is_readable(p)]
        fit = [p for p in whole if p.numel() <= _SAMPLE * 16]
        chosen = [*fit[:2], *fit[-2:]] if len(fit) > 4 else fit
        self._parameters[id(optimizer)] = chosen
        return [one.register_hook(partial(self._take, id(one))) for one in chosen]

    def begin_step(self) -> None:
        """What came until now is of earlier steps, and added up on purpose."""
        self._earlier = set(self._fresh)

    def _take(self, key: int, gradient: Tensor) -> None:
        new = gradient.detach().clone()
        for kept in (self._fresh, self._since_others):
            kept[key] = kept[key] + new if key in kept else new

    def is_stale(self, optimizer: Any) -> bool:
        """Before its update: whether gradients are in it that were there at an earlier update."""
        found = [self._is_stale(one) for one in self._parameters.get(id(optimizer), ())]
        known = [one for one in found if one is not None]
        return bool(known) and all(known)

    def _is_stale(self, parameter: nn.Parameter) -> bool | None:
        key, gradient = id(parameter), parameter.grad
        fresh, used, since = (kept.get(key) for kept in (self._fresh, self._used, self._since_others))
        if gradient is None or fresh is None or not bool(gradient.any()):
            return None
        if used is not None and bool(used.any()) and torch.allclose(gradient, used + fresh, 1e-4, 1e-9):
            return not torch.allclose(gradient, fresh, 1e-3, 1e-9)
        if since is None or key in self._earlier or not torch.allclose(gradient, fresh, 1e-4, 1e-9):
            return False
        return not torch.allclose(gradient, since, 1e-3, 1e-9)

    def note_update(self, optimizer: Any) -> None:
        """After its update: what was used, and that others have stepped since."""
        own = self._parameters.get(id(optimizer), [])
        for one in own:
            self._fresh.pop(id(one), None)
            self._earlier.discard(id(one))
            if one.grad is not None:
                self._used[id(one)] = one.grad.detach().clone()
            else:
                self._used.pop(id(one), None)
        self._since_others.clear()

    def clear(self) -> None:
        """Keep no tensors."""
        for kept in (self._fresh, self._since_others, self._used):
            kept.clear()
        self._earlier.clear()
        self._parameters.clear()


def _age_of(optimizer: Any) -> float:
    """How many updates its state is of, or 1 where the state does not say; 0 without a state."""
    state = getattr(optimizer, "state", None)
    first = next(iter(state.values()), None) if state else None
    if not isinstance(first, dict):
        return float(bool(state))
    age = first.get("step", 1.0)
    on_cpu = not isinstance(age, Tensor) or age.device.type == "cpu"
    return float(age) if on_cpu else 1.0


def _cosine(parameter: nn.Parameter) -> Tensor:
    """How far its gradient points along a parameter, by some values; 0 where one of them is 0."""
    gradient = parameter.grad
    if gradient is not None and parameter.dim() > 1 and is_readable(parameter) and is_readable(gradient):
        pair = _sample(parameter), _sample(gradient)
        if pair[0].shape == pair[1].shape:
            return torch.cosine_similarity(*pair, 0).float()
    return torch.zeros((), device=parameter.device)


def parameters_of(optimizer: Any) -> Iterator[nn.Parameter]:
    """The parameters of an optimizer's groups."""
    for group in getattr(optimizer, "param_groups", ()):
        yield from group["params"]


def _local(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that lies here, or all of another one."""
    local = getattr(tensor, "to_local", None)
    part: Tensor = tensor.detach() if local is None else local().detach()
    return part


@torch.no_grad()
def _sample(parameter: Tensor) -> Tensor:
    """A copy of some values, spread over the parameter."""
    values = _local(parameter)
    if not values.is_contiguous():
        values = values[:1] if values.dim() else values
    flat = values.reshape(-1)
    sample: Tensor = flat[:: max(1, flat.numel() // _SAMPLE)][:_SAMPLE].clone()
    return sample


def _norm(gradient: Tensor) -> Tensor:
    plain = _local(gradient)
    if plain.layout is not torch.strided:
        plain = plain.coalesce().values()
    wide = torch.promote_types(plain.dtype, torch.float32)
    norm: Tensor = torch.linalg.vector_norm(plain, dtype=wide).to(torch.float32)
    return norm.cpu()
