"""Reports to Ray Train: metrics, and where the newest checkpoint is."""

from __future__ import annotations

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ...common.ray_experiment import POINTER, current_experiment
from ...common.remote_paths import url_of
from ..base import Callback

if TYPE_CHECKING:
    from ...durations import StepPosition
    from ..trainer_view import TrainerView


def is_in_ray_worker() -> bool:
    """Whether this process trains for Ray Train."""
    return current_experiment() is not None


class RayReport(Callback):
    """Calls ``ray.train.report`` after each validation, each epoch and at the end of the fit.

    The metrics are all latest values, with ``step`` and ``epoch``. The checkpoint that Ray gets is a small
    folder that names the newest one of the run: ``Net.load_from_checkpoint(result.checkpoint.path)`` and
    ``fit(resume=...)`` follow it. Ray keeps such folders as ``CheckpointConfig`` says; the run's own
    checkpoints are kept as ``Checkpoint`` says.

    It is added by itself in a worker of Ray Train; ``loggers=["-ray"]`` leaves it out, for a script that
    reports by itself: Ray waits in ``report`` until all workers have called it.

    Example:
        >>> trainer = Trainer(max_epochs=1, callbacks=RayReport(), progress=False)
        >>> run = trainer.fit(Net(), train_loader)  # outside of Ray Train nothing is reported
    """

    def __init__(self) -> None:
        self._is_due = self._has_failed = False

    def on_setup(self, trainer: TrainerView, stage: str) -> None:
        self._is_due = self._has_failed = False

    def on_validation_end(self, trainer: TrainerView) -> None:
        self._is_due = self._is_due or trainer.loop.is_fit_validation

    def on_train_epoch_end(self, trainer: TrainerView) -> None:
        self._is_due = True

    def on_step_boundary(self, trainer: TrainerView) -> None:
        if self._is_due:
            self._is_due = False
            _report(trainer)

    def next_due(self, at: StepPosition) -> float:
        return math.inf  # validations and ends of epochs

    def on_exception(self, trainer: TrainerView, error: BaseException) -> None:
        self._has_failed = True  # the other ranks may be elsewhere

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        if stage == "fit" and not self._has_failed:
            _report(trainer)


def _report(trainer: TrainerView) -> None:
    if not is_in_ray_worker():
        return
    from ray.train import Checkpoint, report

    metrics = {"step": trainer.global_step, "epoch": trainer.epoch} | trainer.metrics
    if not trainer.is_global_zero:
        report(metrics)
        return
    places = {"run": trainer.folder, "checkpoint": trainer.run.latest}
    content = {name: path and (url_of(path) or str(path)) for name, path in places.items()}
    with TemporaryDirectory() as folder:
        Path(folder, POINTER).write_text(json.dumps(content) + "\n")
        report(metrics, checkpoint=Checkpoint.from_directory(folder))
