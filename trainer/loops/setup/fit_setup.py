"""Everything between ``fit(...)`` and the first step, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch.optim import Optimizer

from ....callbacks import Checkpoint, ReplicaCheck
from ....callbacks.batches.epoch_schedule import EpochSchedule
from ....callbacks.monitors.monitor import monitor_name
from ....common.faultpoints import faultpoint
from ....durations import Duration
from ....errors import PacelineError, nearest
from ....schedules import RunLength
from ....strategies import StepPlan, Strategy
from ....strategies.launch.job_notes import note_run, noted_micro_batch
from ....strategies.trained import TrainedParameters
from ...checkpoint.manager import CheckpointManager
from ...checkpoint.module_changes import ModuleChanges
from ...checkpoint.run_state import RunState
from ...configured_optimizers import configured_by, read_configuration, slow_schedules
from ...data.feed import Feed
from ...faults.nonfinite import Guard, NonfinitePolicy
from ...optimization import Optimization, Schedule
from ...rng import derive, seed_generators
from ...run.config_file import run_config
from ...runtime.garbage_collection import imports_frozen
from ...utils.tensor_checksum import sample_of_weights
from ..context import StageContext, parts_of
from ..evaluation_loop import EvaluationLoop
from ..fit_context import FitContext
from ..manual_optimizer import ManualOptimization, ManualOptimizer
from ..replicas import Replicas
from .fit_data import FitData, FitFeeds, Resumption, schedule_of
from .rank_check import check_optimizers, check_ranks
from .resume_source import Source
from .startup_report import first_lines, report_restart

FindMicroBatch = Callable[[StageContext, Feed], int]
"""A search before step 1: how many samples a rank takes at once."""


def prepare(
    context: StageContext, data: FitData, resume: Resumption, find_micro_batch: FindMicroBatch | None = None
) -> FitContext:
    """Data, optimizers, checkpoint, folder, first lines: a fit that is ready to run.

    Args:
        context: Of the stage.
        data: What to read.
        resume: Where to continue.
        find_micro_batch: Under ``batch_size="auto"``: how a run that has none finds its micro-batch.
    """
    faultpoint("start.data")
    report_restart(context)
    source = Source(context, resume)
    context = source.with_its_seed(context)
    settings, module, strategy = context.settings, context.module, context.strategy
    seed_generators(settings.seed)
    feed, validation = FitFeeds(context, data, source.counters).open()
    if find_micro_batch is not None:
        context.state.micro_batch = _micro_batch(context, feed, source, find_micro_batch)
        feed.use_micro_batches(context.state.micro_batch)
    micro_batch = context.state.micro_batch
    decay = _last_decay(context, source, resume.decay)
    check_ranks(context, feed)
    faultpoint("start.module")
    first_weights = sample_of_weights(module)
    source.place(context.state)  # configure_optimizers may depend on it
    optimization = _build_optimizers(context, feed)
    trained = _trained_parameters(context, optimization)
    faultpoint("start.restore")
    if context.ranks.data_rank:  # what is drawn in the model from here on is another rank's own
        seed_generators(derive(settings.seed, context.ranks.data_rank))
    monitors = monitored(context.callbacks, optimization.schedules)
    _check_monitored_phases(context, monitors, bool(validation))
    config = run_config(context.directory.name, settings, strategy, module)
    run_state = RunState(
        module=module,
        strategy=strategy,
        optimization=optimization,
        changes=ModuleChanges(module, strategy, optimization.optimizers, trained),
        counters=context.state,
        clock=context.clock,
        logger=context.logger,
        callbacks=context.callbacks,
        hooks=context.hooks,
        trainer=context.trainer,
        feed=feed,
        datamodule=context.datamodule,
        config=config,
    )
    if feed.reloads:
        context.state.epoch_lengths = context.limits.lengths
    inexact = source.other_seed(settings.seed) + source.restore(run_state) + _slow(context, optimization)
    if source.path is None:  # none of the checkpoints was whole
        source.place(context.state)
    context.state.decay_start, context.state.decay_steps = decay
    about = _about(context, first_weights) | source.identity
    context.directory.open(source.path, config, about, in_place=source.in_place)
    if context.directory.path is not None:
        note_run(context.fit_number, context.directory.path)
    if micro_batch:
        context.directory.note_micro_batch(context.state.global_step + 1, micro_batch)
    faultpoint("start.folder")
    scheduled = schedule_of(context, EpochSchedule)  # epochs that it does not name keep their size
    kept = source.counters["global_batch"] if scheduled else 0
    context.state.global_batch = kept or feed.step_size or 0
    context.state.micro_batch = micro_batch
    for line in first_lines(context, optimization.optimizers, feed, source.path, inexact):
        context.directory.log_line(line)
    _report_late_validation(context, monitors)
    return _put_together(context, feed, optimization, run_state, validation, trained)


def _about(context: StageContext, weights: Any) -> dict[str, Any]:
    """What env.json has of the fit."""
    split = context.ranks.tensor_parallel_size
    about = {"fit": context.fit_number, "world": context.ranks.world_size, "weights": weights}
    return about | ({"tensor": split} if split > 1 else {})


def _trained_parameters(context: StageContext, optimization: Optimization) -> TrainedParameters | None:
    """What tells the strategy that something else is trained, where the strategy minds."""
    tell = context.strategy.trainable_changed
    if type(context.strategy).trainable_changed is Strategy.trainable_changed:
        return None
    trained = TrainedParameters(context.module, optimization.optimizers, tell)
    context.closing.callback(trained.close)
    return trained


def _micro_batch(context: StageContext, feed: Feed, source: Source, find: FindMicroBatch) -> int:
    """How many samples a rank takes at once: what the run had, less where memory ran out, or a new search.

    Raises:
        PacelineError: under manual optimization, where a step is one batch.
    """
    if not context.module.automatic_optimization:
        raise PacelineError(
            'batch_size="auto" cuts a step into micro-batches, and with manual optimization a step is one '
            "batch: the module steps the optimizer",
            fix="paceline.tools.find_batch_size, and that batch_size in the DataLoader",
        )
    feed.use_micro_batches(1)  # refuses what cannot be cut, before a search
    if feed.step_size is None:  # nothing is trained on
        return 1
    noted = [n for n in context.ranks.all_gather(noted_micro_batch(context.fit_number)) if n is not None]
    saved = [source.counters["micro_batch"]] if source.counters["micro_batch"] else []
    return min(noted + saved) if noted or saved else find(context, feed)


def _put_together(
    context: StageContext,
    feed: Feed,
    optimization: Optimization,
    run_state: RunState,
    validation: dict[str, Feed],
    trained: TrainedParameters | None,
) -> FitContext:
    """The parts that use what was prepared."""
    strategy, module, settings = context.strategy, context.module, context.settings
    policy = NonfinitePolicy.parse(settings.nonfinite)
    guard = None
    if policy is not None:
        guard = Guard(
            strategy,
            context.state,
            optimization.optimizers,
            policy,
            samples_of=feed.samples_of,
            log_line=context.directory.log_line,
            automatic=module.automatic_optimization,
        )
    clip = (settings.clip_grad_norm, settings.clip_grad_value)
    before_step, note = partial(_call_before_step, context), optimization.note_used
    optimizers = [
        ManualOptimizer(one, strategy, *clip, guard, before_step, partial(note, one), module)
        for one in optimization.optimizers
    ]
    directory = context.directory
    replicas = Replicas(module, strategy, context.state.global_step)
    checkpoints = CheckpointManager(
        strategy,
        run_state,
        context.logger,
        context.watchdog,
        guard,
        directory.checkpoints,
        directory.remote,
        before_save=lambda: replicas.compare(context.state.global_step),
    )
    context.closing.push(partial(_close_checkpoints, checkpoints, context.ranks.world_size))
    for callback in context.callbacks:
        if isinstance(callback, Checkpoint):
            callback.catch_up(context.trainer, checkpoints)
        if isinstance(callback, ReplicaCheck):
            callback.compare_with(replicas.compare if replicas.exist else None)
    return FitContext(
        **parts_of(context),
        feed=feed,
        optimization=optimization,
        guard=guard,
        manual=ManualOptimization(optimizers, strategy, guard, module.automatic_optimization),
        checkpoints=checkpoints,
        validation=EvaluationLoop(context, "validate", validation) if validation else None,
        trained=trained,
        replicas=replicas,
    )


_PATIENCE = 3.0  # seconds, for a save that is being written when a rank has failed


def _close_checkpoints(
    checkpoints: CheckpointManager, world_size: int, kind: Any, failed: BaseException | None, tb: Any
) -> None:
    # A rank that failed is not waited for by the others' updates, and so not by their part of a save.
    unsaved = checkpoints.close(_PATIENCE if failed is not None and world_size > 1 else None)
    if unsaved is not None and failed is not None and unsaved is not failed:
        failed.add_note(f"a checkpoint failed too: {unsaved}")


def _call_before_step(context: StageContext, optimizer: Optimizer) -> None:
    context.hooks.call("on_before_optimizer_step", context.trainer, optimizer)


def _last_decay(context: StageContext, source: Source, decay: Any) -> tuple[int, int]:
    """Where the decay of ``fit(decay=...)`` starts, and its steps; (-1, 0) without one.

    A run that resumes within a decay continues it, unless it is a branch with another one.

    Raises:
        PacelineError: without a checkpoint to start from.
    """
    saved = source.counters
    start, steps = saved["decay_start"], saved["decay_steps"]
    unfinished = saved["global_step"] < start + steps
    continues = steps and (unfinished if decay is None else source.in_place)
    if not continues:
        if decay is None:
            return -1, 0
        start = saved["global_step"]
        if source.path is None or not start:
            raise PacelineError(
                "fit(decay=...) decays the learning rate from a checkpoint on, and there is none",
                fix='fit(..., resume=path, decay="10%")',
            )
        steps = RunLength(start, context.limits.steps_in(saved["epoch"])).amount(decay, "decay")
        if not steps:
            raise PacelineError("fit(decay=...) has no step", got=decay, fix='decay="10%"')
    context.limits.end_after_decay(start, steps)
    context.directory.log_line(f"decays over {steps} steps, from step {start} to {start + steps}")
    return start, steps


def _length(context: StageContext) -> RunLength:
    limits = context.limits
    return RunLength(limits.total_steps, limits.steps_in(0), limits.decay_steps)


def _slow(context: StageContext, optimization: Optimization) -> list[str]:
    automatic = context.module.automatic_optimization
    return slow_schedules(optimization.schedules, _length(context)) if automatic else []


def _build_optimizers(context: StageContext, feed: Feed) -> Optimization:
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
                fix='{"optimizer": optimizer, "lr_scheduler": WSD(...)} with WSD of paceline.schedules',
            )
        check_optimizers(context, found)
        return found

    whole, pieces = feed.step_size, feed.micro_batches * context.ranks.data_world_size
    strategy.plan = StepPlan(
        samples=whole,
        micro_batch=None if whole is None else -(-whole // pieces),
        micro_batches=feed.micro_batches,
        clip_norm=context.settings.clip_grad_norm,
        hooked=bool(context.hooks["on_before_optimizer_step"]),
    )
    for parameter in module.parameters():
        parameter.grad = None  # gradients that a module comes with are no part of step 1
    return strategy.setup(module, build)


def monitored(callbacks: Sequence[Any], schedules: Sequence[Schedule]) -> list[tuple[str, str]]:
    """(who, full name) of everything that waits for a value."""
    found = [
        (type(c).__name__, monitor_name(name))
        for c in callbacks
        if isinstance(name := getattr(c, "monitor", None), str)
    ]
    return found + [(type(s.scheduler).__name__, s.monitor) for s in schedules if s.monitor and s.strict]


def _check_monitored_phases(
    context: StageContext, monitors: list[tuple[str, str]], validates: bool
) -> None:
    settings, requested = context.settings, any(c.requests_validation for c in context.callbacks)
    off = ["validate_every=None"] if settings.validate_every is None and not requested else []
    if settings.limit_val_batches is not None and not settings.limit_val_batches:
        off.append("limit_val_batches=0")
    for who, name in monitors:
        if name.startswith("val/") and (off or not validates):
            raise PacelineError(
                f"{who} watches {name!r}, but this run has no validation",
                got=", ".join(off) or "no validation data or no validation_step",
                fix="give fit a val_dataloader (and the module a validation_step), or watch "
                "'train/loss_epoch'",
            )


def _report_late_validation(context: StageContext, monitors: list[tuple[str, str]]) -> None:
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
    """A few validation batches before training: nothing is logged, mistakes show before they cost."""
    batches = min(context.settings.sanity_val_batches, 1 if context.settings.fast_dev_run else 2**31)
    limit = None if batches < 0 else batches
    if context.validation is None or not batches or context.state.global_step or context.stop.interrupted:
        return
    with context.logger.nothing_published() as latest:
        before = set(latest)
        if context.validation.run(latest.update, limit=limit):
            logged = [name for name in latest if name not in before]
            require_monitored(monitored(context.callbacks, context.optimization.schedules), logged)


def require_monitored(monitors: list[tuple[str, str]], logged: list[str]) -> None:
    """Every watched value of validation must be among those that validation logs.

    Raises:
        PacelineError: naming the first that is not.
    """
    for who, name in monitors:
        if name.startswith("val/") and name not in logged:
            raise PacelineError(
                f"{who} watches {name!r}, which validation does not log",
                got=f"logged: {', '.join(logged) or 'nothing'}",
                meant=nearest(name, logged),
                fix=f"self.log({name.removeprefix('val/')!r}, value) in validation_step",
            )
