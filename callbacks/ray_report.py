"""Reports to Ray Train: metrics and the newest checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ray_experiment import current_experiment
from .base import Callback

if TYPE_CHECKING:
    from .trainer_view import TrainerView


def is_in_ray_worker() -> bool:
    """Whether this process trains for Ray Train."""
    return current_experiment() is not None


class RayReport(Callback):
    """Calls ``ray.train.report`` after each validation, each epoch and at the end of the fit.

    The metrics are all latest values, with ``step`` and ``epoch``. The newest checkpoint of the run goes
    with them where it is new and in the folder of Ray's experiment, as it is with a relative ``run_dir``:
    Ray is given its path, nothing is copied, and ``result.checkpoint`` is the last one. Let
    ``CheckpointConfig(num_to_keep=...)`` of Ray be None: ``Checkpoint(keep_last=...)`` removes old ones.

    It is added by itself in a worker of Ray Train; ``loggers=["-ray"]`` leaves it out, for a script that
    reports by itself: Ray waits in ``report`` until all workers have called it.

    Example:
        >>> trainer = Trainer(max_epochs=1, callbacks=RayReport(), progress=False)
        >>> run = trainer.fit(Net(), train_loader)  # outside of Ray Train nothing is reported
    """

    def __init__(self) -> None:
        self._is_due = self._has_ended = False
        self._checkpoint: Path | None = None

    def on_fit_start(self, trainer: TrainerView) -> None:
        self._is_due = self._has_ended = False
        self._checkpoint = None

    def on_validation_end(self, trainer: TrainerView) -> None:
        self._is_due = self._is_due or trainer.is_fit_validation

    def on_train_epoch_end(self, trainer: TrainerView) -> None:
        self._is_due = True

    def on_step_boundary(self, trainer: TrainerView) -> None:
        if self._is_due:
            self._report(trainer)

    def on_fit_end(self, trainer: TrainerView) -> None:
        self._has_ended = True

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        if self._has_ended:  # after an error the other ranks do not come here
            self._report(trainer)
            self._has_ended = False

    def _report(self, trainer: TrainerView) -> None:
        experiment = current_experiment()
        if experiment is None:
            return
        from ray.train import Checkpoint, CheckpointUploadMode, report

        self._is_due = False
        metrics = {"step": trainer.global_step, "epoch": trainer.epoch} | trainer.metrics
        newest = trainer.latest if trainer.is_global_zero and experiment.is_folder else None
        given: dict[str, Any] = {}
        if newest is not None and newest != self._checkpoint and _is_in(newest, experiment.storage):
            self._checkpoint = newest
            given = {
                "checkpoint": Checkpoint.from_directory(str(newest.resolve())),
                "delete_local_checkpoint_after_upload": False,
            }
        report(metrics, checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD, **given)


def _is_in(path: Path, folder: str) -> bool:
    return path.resolve().is_relative_to(Path(folder).resolve())
