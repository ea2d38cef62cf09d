"""The optimizers of a fit, and what looks after its updates."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ....errors import PacelineError
from ....schedules import RunLength
from ....strategies import Strategy
from ....strategies.trained import TrainedParameters
from ...configured_optimizers import configured_by, read_configuration, slow_schedules
from ...data.feed import Feed
from ...faults.nonfinite import Guard, NonfinitePolicy
from ...optimization import Optimization
from ...runtime.garbage_collection import imports_frozen
from ..context import StageContext
from ..manual_optimizer import ManualOptimization, ManualOptimizer
from .rank_check import check_optimizers


def build_optimizers(context: StageContext, feed: Feed) -> Optimization:
    """Place and wrap the module, and build its optimizers, as the strategy has it."""
    module, strategy = context.module, context.strategy

    def build() -> Optimization:
        with imports_frozen():  # torch's first optimizer imports its compiler
            configured = configured_by(module)
        limits = context.limits
        found = read_configuration(module, configured, module.automatic_optimization, _length(context))
        if limits.decay_steps is not None and not found.decays:
            raise PacelineError(
                "fit(decay=...) is for a WSD schedule, and configure_optimizers returned none",
                code="decay-not-possible",
                fix='{"optimizer": optimizer, "lr_scheduler": WSD(...)} with WSD of paceline.schedules',
            )
        check_optimizers(context, found)
        return found

    whole, pieces = feed.step_size, feed.micro_batches * context.ranks.data_world_size
    strategy.settings = replace(
        strategy.settings,
        clip_norm=context.settings.clip_grad_norm,
        hooks_see_gradients=bool(context.hooks["on_before_optimizer_step"]),
        step_samples=whole,
        micro_batch_size=None if whole is None else -(-whole // pieces),
        micro_batches=feed.micro_batches,
    )
    for parameter in module.parameters():
        parameter.grad = None  # gradients that a module comes with are no part of step 1
    return strategy.setup(module, build)


def trained_parameters(context: StageContext, optimization: Optimization) -> TrainedParameters | None:
    """What tells the strategy that something else is trained, where the strategy minds."""
    tell = context.strategy.trainable_changed
    if type(context.strategy).trainable_changed is Strategy.trainable_changed:
        return None
    trained = TrainedParameters(context.module, optimization.optimizers, tell)
    context.closing.callback(trained.close)
    return trained


def make_guard(context: StageContext, feed: Feed, optimization: Optimization) -> Guard | None:
    """What looks for losses and gradients that are not finite; None under ``nonfinite="ignore"``."""
    policy = NonfinitePolicy.parse(context.settings.nonfinite)
    if policy is None:
        return None
    return Guard(
        context.strategy,
        context.state,
        optimization.optimizers,
        policy,
        samples_of=feed.samples_of,
        log_line=context.directory.log_line,
        automatic=context.module.automatic_optimization,
    )


def manual_optimization(
    context: StageContext, optimization: Optimization, guard: Guard | None
) -> ManualOptimization:
    """What a module steps by that goes backward itself."""
    strategy, module, settings = context.strategy, context.module, context.settings
    clip = (settings.clip_grad_norm, settings.clip_grad_value)
    show = partial(context.hooks.call, "on_before_optimizer_step", context.trainer)
    optimizers = [
        ManualOptimizer(one, strategy, *clip, guard, show, partial(optimization.note_used, one), module)
        for one in optimization.optimizers
    ]
    return ManualOptimization(optimizers, strategy, guard, module.automatic_optimization)


def too_slow_schedules(context: StageContext, optimization: Optimization) -> list[str]:
    """Schedules that step too rarely for their length, in words."""
    automatic = context.module.automatic_optimization
    return slow_schedules(optimization.schedules, _length(context)) if automatic else []


def _length(context: StageContext) -> RunLength:
    limits = context.limits
    return RunLength(limits.total_steps, limits.steps_in(0), limits.decay_steps)
