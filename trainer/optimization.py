"""Holds the optimizers and schedulers of a run for the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..errors import PacelineError
from ..strategies.tensors.tensor_state import OWN_SETTINGS

_REPORTED = ("lr", "momentum", "betas", "weight_decay")


@dataclass
class Schedule:
    """A scheduler and when it steps.

    Args:
        scheduler: Has ``step`` and ``state_dict``.
        interval: ``"epoch"`` or ``"step"``. One that watches a value of validation steps after each
            validation, whatever the interval is.
        frequency: It steps every so many epochs, optimizer steps or validations.
        monitor: The value it is stepped with; None: without one.
        strict: That the value is missing is an error; else the scheduler does not step.
        name: What its learning rates are logged as, after ``lr/``; None: the optimizer's class.
        apply: The module's ``lr_scheduler_step``, called with the scheduler and the value or None.
    """

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1
    monitor: str | None = None
    strict: bool = True
    name: str | None = None
    apply: Callable[[Any, float | None], None] = field(kw_only=True)
    validations: int = field(default=0, init=False)

    @property
    def watches_validation(self) -> bool:
        """Whether it is stepped with a value of validation."""
        return self.monitor is not None and self.monitor.startswith("val/")

    def step(self, count: int, require: Callable[[str, str], float]) -> None:
        """Step the scheduler if this is one of its turns.

        Args:
            count: Epochs, optimizer steps or validations so far.
            require: Given a value's name and who needs it, the latest value.
        """
        if count % self.frequency:
            return
        if self.monitor is None:
            self.apply(self.scheduler, None)
            return
        try:
            value = require(self.monitor, "the learning rate schedule")
        except PacelineError:
            if self.strict:
                raise
            return
        self.apply(self.scheduler, value)


@dataclass
class Optimization:
    """The optimizers and schedules of a run.

    Args:
        decays: Whether a ``WSD`` schedule is among them, which has a last decay.

    Attributes:
        configured: The settings of each optimizer's groups as ``configure_optimizers`` gave them, or of the
            run that is resumed as it began.
    """

    optimizers: list[Optimizer] = field(default_factory=list)
    schedules: list[Schedule] = field(default_factory=list)
    decays: bool = False
    configured: list[list[dict[str, Any]]] = field(init=False)
    _used: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.configured = [[_settings(group) for group in one.param_groups] for one in self.optimizers]

    def optimizer_of(self, schedule: Schedule) -> int | None:
        """Which optimizer a schedule sets the rate of; None where it does not say."""
        its = getattr(schedule.scheduler, "optimizer", None)
        return next((index for index, one in enumerate(self.optimizers) if one is its), None)

    def of_interval(self, interval: str) -> list[Schedule]:
        """The schedules that step per ``"epoch"`` or per ``"step"``."""
        return [s for s in self.schedules if s.interval == interval and not s.watches_validation]

    def step_after_validation(self, require: Callable[[str, str], float]) -> None:
        """Step the schedules that watch a value of validation, with its new value."""
        for schedule in self.schedules:
            if schedule.watches_validation:
                schedule.validations += 1
                schedule.step(schedule.validations, require)

    def note_used(self, optimizer: Optimizer) -> None:
        """Keep what an update is made with; the schedules set what the next one will be made with."""
        self._used[id(optimizer)] = [
            {key: _copied(group[key]) for key in _REPORTED if key in group}
            for group in optimizer.param_groups
        ]

    def learning_rates(self) -> dict[str, float]:
        """``lr/AdamW``, or ``lr/AdamW-0/group-1`` where there are several; plain floats."""
        return self.settings("lr")

    def settings(self, setting: str) -> dict[str, float]:
        """A setting of all parameter groups that have it, named as ``learning_rates``.

        It is that of the last update, where a schedule that goes by steps has changed it since.

        Args:
            setting: ``"lr"``, ``"weight_decay"``, ``"momentum"`` (or the first of ``betas``).
        """
        found: dict[str, float] = {}
        named = {self.optimizer_of(s): s.name for s in self.schedules if s.name is not None}
        for number, optimizer in enumerate(self.optimizers):
            name = type(optimizer).__name__
            if len(self.optimizers) > 1:
                name += f"-{number}"
            name = named.get(number, name)
            groups = self._used.get(id(optimizer), optimizer.param_groups)
            for index, group in enumerate(groups):
                value = group.get(setting)
                if value is None and setting == "momentum":
                    value = group.get("betas", [None])[0]
                if value is not None:
                    several = f"/group-{index}" if len(groups) > 1 else ""
                    found[f"{setting}/{name}{several}"] = float(value)
        return found


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """The plain settings of a group, with the rate that it had before a schedule set its first one."""
    own = (*OWN_SETTINGS, "initial_lr")
    found = {key: _plain(value) for key, value in group.items() if key not in own}
    if "initial_lr" in group:
        found["lr"] = _plain(group["initial_lr"])
    return {key: value for key, value in found.items() if _is_plain(value)}


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value  # schedules write into a rate's tensor


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)
