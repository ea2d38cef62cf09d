"""Everything between ``fit(...)`` and the first step, in order: stages in the files of what they set up."""

from __future__ import annotations

from ....callbacks.batches.epoch_schedule import EpochSchedule
from ....common.faultpoints import faultpoint
from ...rng import derive, seed_generators
from ...run.config_file import run_config
from ...utils.tensor_checksum import sample_of_weights
from ..context import StageContext, parts_of
from ..evaluation_loop import EvaluationLoop
from ..fit_context import FitContext
from ..replicas import Replicas
from .checkpoint_setup import make_checkpoints, state_to_save
from .fit_data import FindMicroBatch, FitData, FitFeeds, Resumption, choose_micro_batch, schedule_of
from .monitored_values import check_monitored_phases, monitored, report_late_validation
from .optimizer_setup import (
    build_optimizers,
    make_guard,
    manual_optimization,
    too_slow_schedules,
    trained_parameters,
)
from .rank_check import check_ranks
from .resume_source import Source
from .startup_report import first_lines, report_restart


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
    settings, state, directory = context.settings, context.state, context.directory
    seed_generators(settings.seed)
    feed, validation = FitFeeds(context, data, source.counters).open()
    if find_micro_batch is not None:
        saved = source.counters["micro_batch"]
        state.micro_batch = choose_micro_batch(context, feed, saved, find_micro_batch)
        feed.use_micro_batches(state.micro_batch)
    micro_batch = state.micro_batch
    decay = source.last_decay(context, resume.decay)
    check_ranks(context, feed)

    faultpoint("start.module")
    first_weights = sample_of_weights(context.module)
    source.place(state)  # configure_optimizers may depend on it
    optimization = build_optimizers(context, feed)
    trained = trained_parameters(context, optimization)
    monitors = monitored(context.callbacks, optimization.schedules)
    check_monitored_phases(context, monitors, bool(validation))

    faultpoint("start.restore")
    if context.ranks.data_rank:  # what is drawn in the model from here on is another rank's own
        seed_generators(derive(settings.seed, context.ranks.data_rank))
    config = run_config(directory.name, settings, context.strategy, context.module)
    run_state = state_to_save(context, feed, optimization, trained, config)
    if feed.reloads:
        state.epoch_lengths = context.limits.lengths
    inexact = source.other_seed(settings.seed) + source.restore(run_state)
    inexact += too_slow_schedules(context, optimization)
    if source.path is None:  # none of the checkpoints was whole
        source.place(state)
    state.decay_start, state.decay_steps = decay
    state.micro_batch = micro_batch
    source.open_folder(context, config, first_weights)
    if micro_batch:
        directory.note_micro_batch(state.global_step + 1, micro_batch)

    faultpoint("start.folder")
    scheduled = schedule_of(context, EpochSchedule)  # epochs that it does not name keep their size
    kept = source.counters["global_batch"] if scheduled else 0
    state.global_batch = kept or feed.step_size or 0
    for line in first_lines(context, optimization.optimizers, feed, source.path, inexact):
        directory.log_line(line)
    report_late_validation(context, monitors)
    guard = make_guard(context, feed, optimization)
    replicas = Replicas(context.module, context.strategy, state.global_step)
    return FitContext(
        **parts_of(context),
        feed=feed,
        optimization=optimization,
        guard=guard,
        manual=manual_optimization(context, optimization, guard),
        checkpoints=make_checkpoints(context, run_state, guard, replicas),
        validation=EvaluationLoop(context, "validate", validation) if validation else None,
        trained=trained,
        replicas=replicas,
    )
