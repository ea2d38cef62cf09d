"""What a checkpoint of a fit holds, and what writes it."""

from __future__ import annotations

from functools import partial
from typing import Any

from ....callbacks import Checkpoint, ReplicaCheck
from ....strategies.trained import TrainedParameters
from ...checkpoint.manager import CheckpointManager
from ...checkpoint.module_changes import ModuleChanges
from ...checkpoint.run_state import RunState
from ...data.feed import Feed
from ...faults.nonfinite import Guard
from ...optimization import Optimization
from ..context import StageContext
from ..replicas import Replicas

_PATIENCE = 3.0  # seconds, for a save that is being written when a rank has failed


def state_to_save(
    context: StageContext,
    feed: Feed,
    optimization: Optimization,
    trained: TrainedParameters | None,
    config: dict[str, Any],
) -> RunState:
    """What checkpoints hold of the fit, and restore."""
    return RunState(
        module=context.module,
        strategy=context.strategy,
        optimization=optimization,
        changes=ModuleChanges(context.module, context.strategy, optimization.optimizers, trained),
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


def make_checkpoints(
    context: StageContext, run_state: RunState, guard: Guard | None, replicas: Replicas
) -> CheckpointManager:
    """What writes checkpoints, before each of which replicas are compared; it closes with the stage."""
    directory = context.directory
    checkpoints = CheckpointManager(
        context.strategy,
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
    return checkpoints


def _close_checkpoints(
    checkpoints: CheckpointManager, world_size: int, kind: Any, failed: BaseException | None, tb: Any
) -> None:
    # A rank that failed is not waited for by the others' updates, and so not by their part of a save.
    unsaved = checkpoints.close(_PATIENCE if failed is not None and world_size > 1 else None)
    if unsaved is not None and failed is not None and unsaved is not failed:
        failed.add_note(f"a checkpoint failed too: {unsaved}")
