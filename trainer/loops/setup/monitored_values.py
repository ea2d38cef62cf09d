"""Values of validation that callbacks and schedules watch: that they come, in time, under that name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....callbacks.monitors.monitor import monitor_name
from ....durations import Duration
from ....errors import PacelineError, nearest
from ...optimization import Schedule
from ..context import StageContext
from ..fit_context import FitContext


def monitored(callbacks: Sequence[Any], schedules: Sequence[Schedule]) -> list[tuple[str, str]]:
    """(who, full name) of everything that waits for a value."""
    found = [
        (type(c).__name__, monitor_name(name))
        for c in callbacks
        if isinstance(name := getattr(c, "monitor", None), str)
    ]
    return found + [(type(s.scheduler).__name__, s.monitor) for s in schedules if s.monitor and s.strict]


def check_monitored_phases(context: StageContext, monitors: list[tuple[str, str]], validates: bool) -> None:
    """See that a run which watches values of validation has one.

    Raises:
        PacelineError: naming the first that waits in vain.
    """
    settings, requested = context.settings, any(c.requests_validation for c in context.callbacks)
    off = ["validate_every=None"] if settings.validate_every is None and not requested else []
    if settings.limit_val_batches is not None and not settings.limit_val_batches:
        off.append("limit_val_batches=0")
    for who, name in monitors:
        if name.startswith("val/") and (off or not validates):
            raise PacelineError(
                f"{who} watches {name!r}, but this run has no validation",
                code="metric-not-logged",
                got=", ".join(off) or "no validation data or no validation_step",
                fix="give fit a val_dataloader (and the module a validation_step), or watch "
                "'train/loss_epoch'",
            )


def report_late_validation(context: StageContext, monitors: list[tuple[str, str]]) -> None:
    """Name what watches a value of validation, where the run ends before its first validation."""
    settings, limits = context.settings, context.limits
    waiting = [f"{who} watches {name!r}" for who, name in monitors if name.startswith("val/")]
    if not waiting or settings.validate_every is None or settings.fast_dev_run:
        return
    every = Duration.parse(settings.validate_every, where="validate_every")
    total, an_epoch, length = limits.total_steps, limits.steps_in(context.state.epoch), ""
    if every.unit == "s":
        if limits.max_seconds is not None and every.amount > limits.max_seconds:
            length = f"max_time={settings.max_time}"
    elif every.unit == "ep" and an_epoch is None:
        if limits.max_epochs is not None and every.amount > limits.max_epochs:
            length = f"max_epochs={limits.max_epochs}"
    elif total is not None and every.amount * (1 if every.unit == "st" else an_epoch or 1) > total:
        length = f"{total} steps"
    if length:
        context.directory.log_line(
            f"warning: validate_every={settings.validate_every} is longer than the run ({length}): "
            f"{', '.join(waiting)} and will never get a value"
        )


def sanity_check(context: FitContext) -> None:
    """A few validation batches before training: nothing is logged, mistakes show before they cost.

    Not in a run that is resumed, unless ``on_fit_start`` has requested it.
    """
    begins = not context.state.global_step or context.step.validates
    context.step.validates = False
    batches = min(context.settings.sanity_val_batches, 1 if context.settings.fast_dev_run else 2**31)
    limit = None if batches < 0 else batches
    if context.validation is None or not batches or not begins or context.stop.interrupted:
        return
    with context.logger.nothing_published() as latest:
        logged: dict[str, float] = {}

        def publish(values: dict[str, float]) -> None:
            latest.update(values)
            logged.update(values)

        if context.validation.run(publish, limit=limit):
            _require_monitored(monitored(context.callbacks, context.optimization.schedules), [*logged])


def _require_monitored(monitors: list[tuple[str, str]], logged: list[str]) -> None:
    """Every watched value of validation must be among those that validation logs.

    Raises:
        PacelineError: naming the first that is not.
    """
    for who, name in monitors:
        if name.startswith("val/") and name not in logged:
            raise PacelineError(
                f"{who} watches {name!r}, which validation does not log",
                code="metric-not-logged",
                got=f"logged: {', '.join(logged) or 'nothing'}",
                meant=nearest(name, logged),
                fix=f"self.log({name.removeprefix('val/')!r}, value) in validation_step",
            )
