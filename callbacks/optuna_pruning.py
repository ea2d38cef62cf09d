"""Report to a trial of Optuna, and end the run where the study prunes it."""

from __future__ import annotations

import operator
import warnings
from typing import TYPE_CHECKING, Any

from ..common.argument_checks import NAME_OR_NONE, TEXT, check_arguments, check_names
from ..errors import PacelineError
from .base import Callback
from .monitors.monitor import monitor_name

if TYPE_CHECKING:
    from .trainer_view import TrainerView


class OptunaPruning(Callback):
    """Reports a value to a trial of Optuna at each validation, and stops the run that the study prunes.

    ``fit`` then ends as after any other stop, with its checkpoint, and raises ``optuna.TrialPruned`` on all
    ranks. Rank 0 alone asks the study. The values are counted: the first one has step 1, also where trials
    differ in their batch size. A run that resumes continues to count, and one that had been pruned ends
    again. docs/guides/hyper-parameters.md has studies that continue after a kill, and trials of several
    ranks. The package is ``pip install 'paceline[optuna]'``.

    Args:
        trial: The ``optuna.Trial``, on rank 0; the other ranks' is not used and may be None.
        monitor: The value to report. One of training (``train/...``) is reported after each epoch.
        name: The key of its state, where there are two of this class.

    Attributes:
        reports: How many values the run has reported, those before a resume included.
        pruned: Whether the study has pruned the run.

    Raises:
        PacelineError: for arguments that are not right, and where optuna is not installed.

    Example:
        >>> import optuna
        >>> def objective(trial):
        ...     pruning = OptunaPruning(trial, "val/loss")
        ...     trainer = Trainer(max_epochs=9, callbacks=pruning, progress=False, run_dir=None)
        ...     trainer.fit(Net(), train_loader, val_loader)
        ...     return trainer.metrics["val/loss"]
        >>> optuna.logging.set_verbosity(optuna.logging.ERROR)
        >>> study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=0.0))
        >>> study.optimize(objective, n_trials=1)
        >>> study.trials[0].state.name, list(study.trials[0].intermediate_values)
        ('PRUNED', [1])
    """

    def __init__(
        self, trial: Any, monitor: str = "val/loss", *, name: str | None = None, **unknown: Any
    ) -> None:
        check_names(OptunaPruning, unknown)
        check_arguments("OptunaPruning", monitor=(monitor, TEXT), name=(name, NAME_OR_NONE))
        if trial is not None and not (hasattr(trial, "report") and hasattr(trial, "should_prune")):
            raise PacelineError(
                "OptunaPruning takes the trial that Optuna gives the objective",
                code="wrong-object",
                got=trial,
                fix='OptunaPruning(trial, "val/loss"); None on ranks other than 0',
            )
        try:
            from optuna import TrialPruned
        except ImportError:
            raise PacelineError(
                "OptunaPruning needs optuna", code="package-missing", fix="pip install 'paceline[optuna]'"
            ) from None
        self._error, self._trial, self._has_failed = TrialPruned, trial, False
        self.monitor = monitor_name(monitor)
        self.name = name
        self.reports, self.pruned = 0, False

    def on_setup(self, trainer: TrainerView, stage: str) -> None:
        if stage != "fit":
            return
        self.reports, self.pruned, self._has_failed = 0, False, False
        if trainer.is_global_zero and self._trial is None:
            raise PacelineError(
                "OptunaPruning has no trial on rank 0", code="missing-argument", fix="OptunaPruning(trial)"
            )

    def on_load_checkpoint(self, trainer: TrainerView, state: dict[str, Any]) -> None:
        if self.pruned:
            trainer.stop(f"pruned before the checkpoint, by {self.monitor}")

    def on_validation_end(self, trainer: TrainerView) -> None:
        if not self.monitor.startswith("train/") and trainer.loop.is_fit_validation:
            self._report(trainer)

    def on_train_epoch_end(self, trainer: TrainerView) -> None:
        if self.monitor.startswith("train/"):
            self._report(trainer)

    def _report(self, trainer: TrainerView) -> None:
        if self.pruned:  # the run's min_epochs have it continue
            return
        value = trainer.require_metric(self.monitor, "OptunaPruning")
        self.reports += 1
        if trainer.ranks.on_rank_zero(lambda: self._ask(value)):
            self.pruned = True
            trainer.stop(f"pruned by the study: {self.monitor} is {value:.6g} at report {self.reports}")

    def _ask(self, value: float) -> bool:
        with warnings.catch_warnings():  # a resumed run reports what it had reported after its checkpoint
            warnings.filterwarnings("ignore", "The reported value is ignored")
            self._trial.report(value, self.reports)
        return bool(self._trial.should_prune())

    def on_exception(self, trainer: TrainerView, error: BaseException) -> None:
        self._has_failed = True

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        """Raise ``optuna.TrialPruned`` where the study has pruned the run."""
        if stage == "fit" and self.pruned and not self._has_failed and not trainer.interrupted:
            raise self._error(f"{self.monitor} at report {self.reports}")

    def state_dict(self) -> dict[str, Any]:
        return {"reports": self.reports, "pruned": self.pruned, "monitor": self.monitor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["monitor"] == self.monitor:
            self.reports, self.pruned = operator.index(state["reports"]), bool(state["pruned"])
