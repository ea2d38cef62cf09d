"""The parts of a run that have a state as plain data: saved and restored by ``RunState``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from ...callbacks import Callback
from ...strategies.tensors.tensor_state import check_kind
from ..metrics.logger import MetricLogger
from ..metrics.metric_objects import metric_parts, reset_meanwhile, set_state, update_count
from ..metrics.store import MetricStore
from ..optimization import Optimization
from ..rng import full_state, set_full_state
from ..state import Clock, TrainState
from ..utils.nested import map_tensors


class Stateful(Protocol):
    """What has a state that a checkpoint keeps, as plain data."""

    def state_dict(self) -> Any:
        """The state."""

    def load_state_dict(self, state: Any) -> None:
        """Restore what ``state_dict`` returned."""


@dataclass(frozen=True)
class Counters:
    """The counters of a run, with the clock's seconds."""

    state: TrainState
    clock: Clock

    def state_dict(self) -> dict[str, Any]:
        """The state, as plain data."""
        return self.state.state_dict() | {"elapsed": self.clock.seconds()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self.state.load_state_dict(state)


@dataclass(frozen=True)
class ScheduleStates:
    """Learning rate schedulers, in the order of ``configure_optimizers``."""

    optimization: Optimization

    def state_dict(self) -> list[dict[str, Any]]:
        """The state, as plain data."""
        return [
            {
                "class": type(s.scheduler).__name__,
                "optimizer": self.optimization.optimizer_of(s),
                "state": s.scheduler.state_dict(),
                "validations": s.validations,
            }
            for s in self.optimization.schedules
        ]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Restore what ``state_dict`` returned."""
        for schedule, saved in zip(self.optimization.schedules, state, strict=True):
            # a user's own scheduler may change the kinds of its values
            if type(schedule.scheduler).__module__.startswith("torch."):
                own = schedule.scheduler.state_dict()
                for key, value in saved["state"].items():
                    check_kind(key, value, own.get(key), lengths=False)
            schedule.scheduler.load_state_dict(saved["state"])
            schedule.validations = saved.get("validations", 0)


@dataclass(frozen=True)
class CallbackStates:
    """Callbacks, by ``state_key``."""

    callbacks: list[Callback]

    def state_dict(self) -> dict[str, Any]:
        """The state, as plain data."""
        return {callback.state_key: callback.state_dict() for callback in self.callbacks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        for callback in self.callbacks:
            if state.get(callback.state_key):
                callback.load_state_dict(state[callback.state_key])


@dataclass(frozen=True)
class GeneratorStates:
    """The random generators of this rank."""

    device: torch.device

    def state_dict(self) -> dict[str, Any]:
        """The state, as plain data."""
        return full_state(self.device)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        set_full_state(state, self.device)


@dataclass(frozen=True)
class LoggedSums:
    """The sums of this rank's logged values that are not reduced yet."""

    store: MetricStore

    def state_dict(self) -> dict[str, Any]:
        """The state, as plain data."""
        return self.store.own_state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self.store.load_state_dict(state)


@dataclass(frozen=True)
class MetricObjectStates:
    """The states of torchmetrics objects, which a state_dict lacks: an epoch may be half counted."""

    module: nn.Module
    logger: MetricLogger
    device: torch.device

    def state_dict(self) -> dict[str, Any]:
        """The state, as plain data. What hooks of an end still see is over, and no part of it."""
        held = self.logger.held_objects()
        with reset_meanwhile(held):
            return self._states({id(metric) for metric in held})

    def _states(self, over: set[int]) -> dict[str, Any]:
        logged = self.logger.train.objects.items()
        waiting = {id(metric): name for name, metric in logged if id(metric) not in over}
        metrics = {id(part) for part in metric_parts(self.module).values()}
        return {
            path: {
                "state": dict(part.metric_state),  # type: ignore[arg-type]
                "count": update_count(part),
                "logged_as": waiting.get(id(part)),
            }
            for path, part in self.module.named_modules()
            if id(part) in metrics or id(part) in waiting
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        parts, metrics = dict(self.module.named_modules()), metric_parts(self.module)
        for path, saved in map_tensors(state, _to(self.device)).items():
            part: Any = parts.get(path)
            if part is None:
                continue
            if path in metrics:
                set_state(part, saved["state"], saved["count"])
            if saved["logged_as"] is not None:
                self.logger.train.objects[saved["logged_as"]] = part


def _to(device: torch.device) -> Callable[[Any], Any]:
    return lambda tensor: tensor.to(device)
