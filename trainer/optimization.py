"""Reads what ``configure_optimizers`` returned, and holds optimizers and schedulers for the loop."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ..argument_checks import NAME_OR_NONE, SWITCH, TEXT_OR_NONE, check_arguments
from ..callbacks.hooks import with_arity
from ..callbacks.monitor import monitor_name
from ..errors import PacelineError, listed, nearest
from ..schedules import WSD, RateSchedule, RunLength, make_schedule
from ..strategies.base import parameters_of
from ..strategies.tensor_state import OWN_SETTINGS

_ALLOWED = (
    "an optimizer, a list of them, (optimizer, scheduler), ([optimizers], [schedulers]) or "
    '{"optimizer": ..., "lr_scheduler": scheduler or {"scheduler": ..., "interval": ..., ...}}'
)
_REPORTED = ("lr", "momentum", "betas", "weight_decay")
_SCHEDULER_KEYS = ("scheduler", "interval", "frequency", "monitor", "strict", "name")


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


def read_configuration(
    module: Any, configured: Any, automatic: bool, length: RunLength | None = None
) -> Optimization:
    """Check and sort what ``configure_optimizers`` returned.

    Args:
        module: The module, whose trainable parameters must be in the optimizers.
        configured: What it returned.
        automatic: Whether the loop steps the optimizer.
        length: How long the run is, for the schedules of ``paceline.schedules``.

    Raises:
        PacelineError: for another shape, for trainable parameters no optimizer holds, and for several
            optimizers under automatic optimization.
        PacelineError: for an ``eps`` that is 0 in the dtype of float16 parameters.
    """
    optimizers, schedules = _sorted_out(configured)
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise _wrong(f"{type(optimizer).__name__} is no torch.optim.Optimizer", configured)
    _check_coverage(module, optimizers)
    _check_eps(optimizers)
    if automatic:
        _check_automatic(optimizers)
    ours = [_ours(given) for given in schedules]
    for number, (one, given) in enumerate(zip(ours, schedules, strict=True)):
        if one is not None:
            schedules[number] = _built(one, given, optimizers[number:], length or RunLength(None))
    read = [_read_schedule(s, optimizers, with_arity(module.lr_scheduler_step, 2)) for s in schedules]
    return Optimization(optimizers, read, any(isinstance(one, WSD) for one in ours))


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


def _wrong(what: str, configured: Any) -> PacelineError:
    return PacelineError(f"configure_optimizers: {what}", got=_brief(configured), allowed=_ALLOWED)


def _brief(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k!r}: {_brief(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_brief(v) for v in value) + ")"
    return "None" if value is None else type(value).__name__


def _sorted_out(configured: Any) -> tuple[list[Any], list[Any]]:
    if isinstance(configured, Optimizer):
        return [configured], []
    if isinstance(configured, Mapping):
        if "optimizer" not in configured:
            raise _wrong("the mapping has no 'optimizer'", configured)
        beside = {key: value for key, value in configured.items() if key in ("monitor", "strict", "name")}
        unknown = set(configured) - {"optimizer", "lr_scheduler", *beside}
        if unknown:
            raise _wrong(f"unknown keys {sorted(unknown)}", configured)
        schedule = configured.get("lr_scheduler")
        if schedule is None:
            return [configured["optimizer"]], []
        given = schedule if isinstance(schedule, Mapping) else {"scheduler": schedule}
        return [configured["optimizer"]], [{**beside, **given}]
    if not isinstance(configured, Sequence) or isinstance(configured, str) or not configured:
        raise _wrong("nothing to train with was returned", configured)
    if all(isinstance(item, Mapping) for item in configured):
        parts = [_sorted_out(item) for item in configured]
        return [o for part in parts for o in part[0]], [s for part in parts for s in part[1]]
    if len(configured) == 2 and isinstance(configured[0], (list, tuple)):
        return list(configured[0]), list(configured[1])
    if len(configured) == 2 and not isinstance(configured[1], Optimizer):
        return [configured[0]], [configured[1]]
    return list(configured), []


def _ours(given: Any) -> RateSchedule | None:
    """The schedule of ``paceline.schedules`` that was given, by itself, by name or in a mapping."""
    schedule = given.get("scheduler") if isinstance(given, Mapping) else given
    if isinstance(schedule, str):
        return make_schedule(schedule)
    return schedule if isinstance(schedule, RateSchedule) else None


def _built(
    schedule: RateSchedule, given: Any, optimizers: Sequence[Optimizer], length: RunLength
) -> dict[str, Any]:
    """What was given, with torch's scheduler for the first of these optimizers in the schedule's place."""
    keys = dict(given) if isinstance(given, Mapping) else {}
    for key, value in (("interval", "step"), ("frequency", 1)):
        if keys.setdefault(key, value) != value:
            raise PacelineError(
                f"configure_optimizers: {type(schedule).__name__} steps after each optimizer step",
                got=f"{key}={keys[key]!r}",
                fix=f"leave {key} out",
            )
    if not optimizers:
        raise PacelineError(
            f"configure_optimizers: there is no optimizer for {type(schedule).__name__}",
            fix="return as many optimizers as schedules, in one order",
        )
    return keys | {"scheduler": schedule.build(optimizers[0], length)}


def _read_schedule(
    given: Any, optimizers: list[Optimizer], apply: Callable[[Any, float | None], None]
) -> Schedule:
    if not isinstance(given, Mapping):
        given = {"scheduler": given}
    unknown = [key for key in given if key not in _SCHEDULER_KEYS]
    if unknown:
        raise PacelineError(
            f"configure_optimizers: lr_scheduler has no key {unknown[0]!r}",
            allowed=", ".join(_SCHEDULER_KEYS),
            meant=nearest(str(unknown[0]), _SCHEDULER_KEYS),
        )
    if "scheduler" not in given:
        raise _wrong("lr_scheduler has no 'scheduler'", given)
    schedule = Schedule(**given, apply=apply)
    if not (hasattr(schedule.scheduler, "step") and hasattr(schedule.scheduler, "state_dict")):
        raise _wrong(f"{type(schedule.scheduler).__name__} is no scheduler", given)
    if schedule.interval not in ("epoch", "step"):
        raise PacelineError(
            "configure_optimizers: interval is not known",
            got=schedule.interval,
            allowed="'epoch', 'step'",
        )
    if not isinstance(schedule.frequency, int) or schedule.frequency < 1:
        raise PacelineError(
            "configure_optimizers: frequency counts epochs or steps",
            got=schedule.frequency,
            allowed="an integer of at least 1",
        )
    drives = getattr(schedule.scheduler, "optimizer", None)
    if isinstance(schedule.scheduler, LRScheduler) and not any(drives is o for o in optimizers):
        raise _wrong("a scheduler drives an optimizer that was not returned", given)
    if isinstance(schedule.scheduler, ReduceLROnPlateau) and schedule.monitor is None:
        raise PacelineError(
            "configure_optimizers: ReduceLROnPlateau watches a value, but none is named",
            fix='{"scheduler": scheduler, "monitor": "val/loss"}',
        )
    check_arguments(
        "configure_optimizers, lr_scheduler",
        monitor=(schedule.monitor, TEXT_OR_NONE),
        strict=(schedule.strict, SWITCH),
        name=(schedule.name, NAME_OR_NONE),
    )
    if schedule.monitor is not None:
        schedule.monitor = monitor_name(schedule.monitor)
    return schedule


def _check_coverage(module: nn.Module, optimizers: list[Optimizer]) -> None:
    held = {id(p) for optimizer in optimizers for p in parameters_of(optimizer)}
    missing = [n for n, p in module.named_parameters() if p.requires_grad and id(p) not in held]
    if not missing:
        _check_foreign(module, held)
        return
    total = sum(1 for p in module.parameters() if p.requires_grad)
    raise PacelineError(
        f"configure_optimizers: {len(missing)} of {total} trainable parameters are in no optimizer "
        "and would never change",
        got=f"without an optimizer: {listed(missing)}",
        fix="pass self.parameters() to the optimizer, or freeze them with requires_grad_(False)",
    )


def _check_foreign(module: nn.Module, held: set[int]) -> None:
    foreign = held - {id(p) for p in module.parameters()}
    if foreign:
        raise PacelineError(
            "configure_optimizers: an optimizer holds parameters that are not the module's",
            got=f"{len(foreign)} of them",
            fix="assign what holds them to self in __init__",
        )


def _check_eps(optimizers: list[Optimizer]) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            eps, dtypes = group.get("eps"), {p.dtype for p in group["params"]}
            if (
                isinstance(eps, float)
                and eps > 0
                and torch.float16 in dtypes
                and torch.tensor(eps).half() == 0
            ):
                raise PacelineError(
                    f"{type(optimizer).__name__} on parameters in float16: eps={eps:g} is 0 there, and "
                    "small gradients would be divided by zero",
                    got="parameters in float16, as with precision='fp16-true'",
                    fix="precision='fp16' has parameters and moments in float32; or eps=1e-4",
                )


def _check_automatic(optimizers: list[Optimizer]) -> None:
    if len(optimizers) > 1:
        raise PacelineError(
            "several optimizers need manual optimization",
            got=f"{len(optimizers)} optimizers and automatic_optimization = True",
            fix="set self.automatic_optimization = False and call self.manual_backward(loss) and "
            "optimizer.step() in training_step",
        )
    closure = inspect.signature(optimizers[0].step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise PacelineError(
            f"{type(optimizers[0]).__name__} evaluates the loss itself, through a closure",
            fix="set self.automatic_optimization = False and call optimizer.step(closure) yourself",
        )
