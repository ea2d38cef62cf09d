"""What a step that failed has changed before its update, and puts back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from torch import Tensor, nn

from ...strategies.torch_internals import buffers_of, writes_to
from ..metrics.metric_objects import metric_parts, set_state, update_count
from ..rng import full_state, generators_of, putting_back, set_full_state
from .fit_context import FitContext


class StepUndo:
    """Keeps what a step may change besides gradients: generators, buffers, logged values, counters.

    Where those of the module are is looked up once. What else ``training_step`` changes is the user's.
    """

    def __init__(self, context: FitContext) -> None:
        modules = list(context.module.modules())
        self._context, self._device = context, context.strategy.device
        self._owners = [module for module in modules if buffers_of(module)]
        self._generators = generators_of(*modules)
        self._parameters = dict(context.module.named_parameters())
        self._logged: dict[int, Any] = {}
        self._metrics: dict[int, Any] = {}
        self._add_metrics([context.module])
        self._writes: list[int] = []

    def _add_metrics(self, objects: Iterable[Any]) -> None:
        modules = [one for one in objects if isinstance(one, nn.Module)]
        parts = [part for module in modules for part in metric_parts(module).values()]
        self._metrics |= {id(part): part for part in parts}

    def keep(self) -> Callable[[], None]:
        """To be called before a step. What puts everything back."""
        context, device = self._context, self._device
        store = context.logger.train
        new = [one for one in store.objects.values() if id(one) not in self._logged]
        if new:  # objects of torchmetrics may be elsewhere than in the module
            self._logged |= {id(one): one for one in new}
            self._add_metrics(new)
        self._writes = writes_to(self._parameters.values())
        generators, counters = full_state(device), copy.copy(context.state)
        own_generators = [putting_back(one) for one in self._generators]
        undo_logging = store.keep()
        buffers = [
            (owner, name, buffer, None if buffer is None else buffer.clone())
            for owner in self._owners
            for name, buffer in buffers_of(owner).items()
        ]
        metrics = [(m, _copied(m.metric_state), update_count(m)) for m in self._metrics.values()]

        def undo() -> None:
            set_full_state(generators, device)
            for put_back in own_generators:
                put_back()
            for counter in fields(counters):
                setattr(context.state, counter.name, getattr(counters, counter.name))
            first_logged = [one for one in store.objects.values() if id(one) not in self._logged]
            undo_logging()
            for owner, name, buffer, before in buffers:
                setattr(owner, name, buffer)  # the step may have put another tensor in its place
                if buffer is not None and before is not None:
                    buffer.copy_(before)
            for metric in first_logged:
                if id(metric) not in self._metrics:
                    metric.reset()
            for metric, state, count in metrics:
                set_state(metric, state, count)

        return undo

    def written_parameters(self) -> list[str]:
        """The parameters that were written to since ``keep``, by name: no undoing is possible."""
        now = writes_to(self._parameters.values())
        return [name for name, a, b in zip(self._parameters, self._writes, now, strict=True) if a != b]


def _copied(state: Any) -> dict[str, Any]:
    """A metric may add to a tensor in place, and appends to a list."""
    return {n: value.clone() if isinstance(value, Tensor) else list(value) for n, value in state.items()}
