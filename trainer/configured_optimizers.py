"""Reads what ``configure_optimizers`` returned: optimizers, their groups, schedules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ..callbacks.hooks import with_arity
from ..callbacks.monitors.monitor import monitor_name
from ..common.argument_checks import NAME_OR_NONE, SWITCH, TEXT_OR_NONE, check_arguments
from ..errors import PacelineError, listed, nearest
from ..schedules import WSD, RateSchedule, RunLength, make_schedule
from ..strategies.base import parameters_of
from .optimization import Optimization, Schedule
from .wrong_groups import check_settings, explain_groups

_ALLOWED = (
    "an optimizer, a list of them, (optimizer, scheduler), ([optimizers], [schedulers]) or "
    '{"optimizer": ..., "lr_scheduler": scheduler or {"scheduler": ..., "interval": ..., ...}}'
)
_KEYS = ("optimizer", "lr_scheduler", "monitor", "strict", "name")
_KEY_PEERS = {"scheduler": "lr_scheduler", "schedule": "lr_scheduler", "opt": "optimizer"}
_SCHEDULER_KEYS = ("scheduler", "interval", "frequency", "monitor", "strict", "name")


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
    for number, optimizer in enumerate(optimizers):
        if not isinstance(optimizer, Optimizer):
            raise _wrong(
                f"{_called(optimizer)} is no torch.optim.Optimizer",
                configured,
                where=_item(number, optimizers, "optimizers"),
                fix=_optimizer_of(optimizer),
            )
        check_settings(optimizer)
    _check_coverage(module, optimizers)
    _check_eps(optimizers)
    if automatic:
        _check_automatic(optimizers)
    ours = [_ours(given) for given in schedules]
    for number, (one, given) in enumerate(zip(ours, schedules, strict=True)):
        if one is not None:
            schedules[number] = _built(one, given, optimizers[number:], length or RunLength(None))
    apply = with_arity(module.lr_scheduler_step, 2)
    read = [
        _read_schedule(one, optimizers, apply, _item(number, schedules, "schedulers"))
        for number, one in enumerate(schedules)
    ]
    return Optimization(optimizers, read, any(isinstance(one, WSD) for one in ours))


def configured_by(module: Any) -> Any:
    """What ``configure_optimizers`` of the module returns.

    An error of it that comes from wrong parameter groups gets a note that names their place.
    """
    try:
        return module.configure_optimizers()
    except Exception as error:
        explain_groups(error, module)
        raise


def slow_schedules(schedules: Sequence[Schedule], length: RunLength) -> list[str]:
    """Notes on torch's schedules that last as many steps as the run, and step once an epoch."""
    notes = []
    for one in schedules:
        lasts = getattr(one.scheduler, "total_steps", None) or getattr(one.scheduler, "T_max", None)
        if one.interval == "epoch" and lasts == length.steps and (length.epoch or 1) > 1:
            notes.append(
                f"{type(one.scheduler).__name__} lasts {lasts} steps, as the run, but steps once an epoch; "
                '{"scheduler": scheduler, "interval": "step"} lets it step after each update'
            )
    return notes


def _wrong(what: str, configured: Any, where: str | None = None, fix: str | None = None) -> PacelineError:
    return PacelineError(
        f"configure_optimizers: {what}",
        code="optimizers-wrong",
        where=where,
        got=_brief(configured),
        allowed=_ALLOWED,
        fix=fix,
    )


def _item(number: int, several: Sequence[Any], name: str) -> str | None:
    return f"item {number} of the {name}" if len(several) > 1 else None


def _called(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _optimizer_of(given: Any) -> str | None:
    """What makes an optimizer of what was given."""
    name = getattr(given, "__name__", "")
    if isinstance(given, type) and issubclass(given, Optimizer):
        return f"{name}(self.parameters(), lr=...)"
    if isinstance(given, str):
        classes = {one.__name__: one for one in vars(torch.optim).values() if isinstance(one, type)}
        return f"torch.optim.{nearest(given, classes) or 'AdamW'}(self.parameters(), lr=...)"
    if isinstance(given, LRScheduler):
        return "the optimizer comes first: return optimizer, scheduler"
    return f"call it: {name or 'function'}(self.parameters())" if callable(given) and name else None


def _schedule_of(given: Any) -> str | None:
    """What makes a scheduler of what was given."""
    if isinstance(given, type):
        return f"{given.__name__}(optimizer, ...)"
    if isinstance(given, partial):
        return "call it with the optimizer"
    if isinstance(given, (FunctionType, MethodType)):
        return "torch.optim.lr_scheduler.LambdaLR(optimizer, function), if it gives the factor of a step"
    if isinstance(given, Optimizer):
        return "the optimizer comes first: return optimizer, scheduler"
    return "leave it out" if given is None else None


def _brief(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k!r}: {_brief(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_brief(v) for v in value) + ")"
    return "None" if value is None else _called(value)


def _sorted_out(configured: Any) -> tuple[list[Any], list[Any]]:
    if isinstance(configured, Optimizer):
        return [configured], []
    if isinstance(configured, Mapping):
        if "optimizer" not in configured:
            raise _wrong("the mapping has no 'optimizer'", configured)
        beside = {key: value for key, value in configured.items() if key in _KEYS[2:]}
        unknown = set(configured) - set(_KEYS)
        if unknown:
            near = {str(key): _KEY_PEERS.get(key) or nearest(str(key), _KEYS) for key in unknown}
            meant = [f"{ours} for {theirs}" for theirs, ours in sorted(near.items()) if ours]
            fix = f"write {', '.join(meant)}" if meant else None
            raise _wrong(f"unknown keys {sorted(map(str, unknown))}", configured, fix=fix)
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
                code="schedule-wrong",
                got=f"{key}={keys[key]!r}",
                fix=f"leave {key} out",
            )
    if not optimizers:
        raise PacelineError(
            f"configure_optimizers: there is no optimizer for {type(schedule).__name__}",
            code="schedule-wrong",
            fix="return as many optimizers as schedules, in one order",
        )
    return keys | {"scheduler": schedule.build(optimizers[0], length)}


def _read_schedule(
    given: Any,
    optimizers: list[Optimizer],
    apply: Callable[[Any, float | None], None],
    where: str | None,
) -> Schedule:
    if not isinstance(given, Mapping):
        given = {"scheduler": given}
    unknown = [key for key in given if key not in _SCHEDULER_KEYS]
    if unknown:
        raise PacelineError(
            f"configure_optimizers: lr_scheduler has no key {unknown[0]!r}",
            code="schedule-wrong",
            where=where,
            allowed=", ".join(_SCHEDULER_KEYS),
            meant=nearest(str(unknown[0]), _SCHEDULER_KEYS),
        )
    if "scheduler" not in given:
        raise _wrong("lr_scheduler has no 'scheduler'", given, where)
    schedule = Schedule(**given, apply=apply)
    steps = hasattr(schedule.scheduler, "step") and hasattr(schedule.scheduler, "state_dict")
    if not steps or isinstance(schedule.scheduler, (type, Optimizer)):
        fix = _schedule_of(schedule.scheduler)
        raise _wrong(f"{_called(schedule.scheduler)} is no scheduler", given, where, fix)
    if schedule.interval not in ("epoch", "step"):
        raise PacelineError(
            "configure_optimizers: interval is not known",
            code="schedule-wrong",
            where=where,
            got=schedule.interval,
            allowed="'epoch', 'step'",
        )
    if not isinstance(schedule.frequency, int) or schedule.frequency < 1:
        raise PacelineError(
            "configure_optimizers: frequency counts epochs or steps",
            code="schedule-wrong",
            where=where,
            got=schedule.frequency,
            allowed="an integer of at least 1",
        )
    drives = getattr(schedule.scheduler, "optimizer", None)
    if isinstance(schedule.scheduler, LRScheduler) and not any(drives is o for o in optimizers):
        name = type(schedule.scheduler).__name__
        raise PacelineError(
            f"configure_optimizers: {name} drives an optimizer that was not returned",
            code="schedule-wrong",
            where=where,
            got=f"a {type(drives).__name__} of its own, and returned: {_brief(optimizers)}",
            fix=f"make one optimizer, and return that and {name}(optimizer, ...)",
        )
    if isinstance(schedule.scheduler, ReduceLROnPlateau) and schedule.monitor is None:
        raise PacelineError(
            "configure_optimizers: ReduceLROnPlateau watches a value, but none is named",
            code="schedule-wrong",
            where=where,
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
        code="parameters-without-optimizer",
        got=f"without an optimizer: {listed(missing)}",
        fix="pass self.parameters() to the optimizer, or freeze them with requires_grad_(False)",
    )


def _check_foreign(module: nn.Module, held: set[int]) -> None:
    foreign = held - {id(p) for p in module.parameters()}
    if foreign:
        raise PacelineError(
            "configure_optimizers: an optimizer holds parameters that are not the module's",
            code="optimizers-wrong",
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
                    code="optimizer-not-supported",
                    got="parameters in float16, as with precision='fp16-true'",
                    fix="precision='fp16' has parameters and moments in float32; or eps=1e-4",
                )


def _check_automatic(optimizers: list[Optimizer]) -> None:
    if len(optimizers) > 1:
        raise PacelineError(
            "several optimizers need manual optimization",
            code="manual-optimization",
            got=f"{len(optimizers)} optimizers and automatic_optimization = True",
            fix="set self.automatic_optimization = False and call self.manual_backward(loss) and "
            "optimizer.step() in training_step",
        )
    closure = inspect.signature(optimizers[0].step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise PacelineError(
            f"{type(optimizers[0]).__name__} evaluates the loss itself, through a closure",
            code="manual-optimization",
            fix="set self.automatic_optimization = False and call optimizer.step(closure) yourself",
        )
