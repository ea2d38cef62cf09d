"""``EarlyStopping``: Lightning's arguments, attributes, and methods that subclasses override."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from .....errors import PacelineError, nearest
from .callback import Callback


class EarlyStoppingReason(Enum):
    """Why it has stopped the run."""

    NOT_STOPPED = 0
    STOPPING_THRESHOLD = 1
    DIVERGENCE_THRESHOLD = 2
    PATIENCE_EXHAUSTED = 3
    NON_FINITE_METRIC = 4


class EarlyStopping(Callback):
    """Stops when a value no longer gets better.

    Args:
        monitor: The value's name, as it was logged.
        min_delta: What counts as better is better by more than this.
        patience: Validations without a better value.
        verbose: Log a better value too; the reason for a stop is always a line.
        mode: ``"min"`` or ``"max"``.
        strict: That the value is missing is an error.
        check_finite: Stop when the value is NaN or infinite.
        stopping_threshold: Stop when the value is better than this.
        divergence_threshold: Stop when the value is worse than this.
        check_on_train_epoch_end: Look after each epoch instead of after each validation; None: where a
            validation is part of each epoch's end.
        log_rank_zero_only: Accepted: lines are rank 0's.

    Attributes:
        min_delta: As Lightning has it: negative for ``"min"``.
        wait_count: Validations since the best value.
        best_score: The best value so far; infinite before the first.
        stopped_epoch: The epoch at which it stopped the run; 0 where it did not.
        stopping_reason: Which of the reasons it was.
        stopping_reason_message: The same as a sentence; None where it did not stop.

    Raises:
        PacelineError: for another mode.
    """

    mode_dict = {"min": torch.lt, "max": torch.gt}
    order_dict = {"min": "<", "max": ">"}
    monitors = True

    def __init__(
        self,
        monitor: str,
        min_delta: float = 0.0,
        patience: int = 3,
        verbose: bool = False,
        mode: str = "min",
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool | None = None,
        log_rank_zero_only: bool = False,
    ) -> None:
        if mode not in self.mode_dict:
            raise PacelineError(
                "EarlyStopping: no such mode",
                code="unknown-choice",
                got=f"mode={mode!r}",
                allowed="'min', 'max'",
            )
        self.monitor, self.patience, self.verbose, self.mode = monitor, patience, verbose, mode
        self.min_delta = min_delta if mode == "max" else -min_delta
        self.strict, self.check_finite = strict, check_finite
        self.stopping_threshold, self.divergence_threshold = stopping_threshold, divergence_threshold
        self._check_on_train_epoch_end = check_on_train_epoch_end
        self.log_rank_zero_only = log_rank_zero_only
        self.wait_count = self.stopped_epoch = 0
        self.best_score = torch.tensor(math.inf if mode == "min" else -math.inf)
        self.stopping_reason = EarlyStoppingReason.NOT_STOPPED
        self.stopping_reason_message: str | None = None

    @property
    def monitor_op(self) -> Callable[..., Any]:
        """What is better: ``torch.lt`` or ``torch.gt``."""
        return self.mode_dict[self.mode]

    @property
    def state_key(self) -> str:
        return self._generate_state_key(monitor=self.monitor, mode=self.mode)

    def state_dict(self) -> dict[str, Any]:
        names = ("wait_count", "stopped_epoch", "best_score", "patience", "stopping_reason_message")
        return {name: getattr(self, name) for name in names} | {
            "stopping_reason": self.stopping_reason.value
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        given = dict(state_dict)
        self.stopping_reason = EarlyStoppingReason(given.pop("stopping_reason", 0))
        vars(self).update(given)

    # -- when it looks -------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Decide when it looks, where that was not given."""
        if self._check_on_train_epoch_end is None:
            at_each_end = trainer.val_check_interval == 1.0 and trainer.check_val_every_n_epoch == 1
            self._check_on_train_epoch_end = at_each_end

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Look at the value, where it is one of validations; a subclass that skips this does not."""
        if not self._check_on_train_epoch_end and not self._should_skip_check(trainer):
            self._run_early_stopping_check(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Look at the value; a subclass that skips this does not."""
        if self._check_on_train_epoch_end and not self._should_skip_check(trainer):
            self._run_early_stopping_check(trainer)

    def _should_skip_check(self, trainer: Any) -> bool:
        return trainer.state.fn != "fit" or bool(trainer.sanity_checking)

    # -- what it does then: by Lightning's names, which subclasses override --------------------

    def _run_early_stopping_check(self, trainer: Any) -> None:
        logs = trainer.callback_metrics
        if trainer.fast_dev_run or not self._has_value(trainer, logs):
            return
        # A step's own value differs between ranks.
        current = trainer.strategy.broadcast(logs[self.monitor].detach().cpu().squeeze())
        stops, reason = self._evaluate_stopping_criteria(current)
        if trainer.strategy.reduce_boolean_decision(stops, all=False):
            self.stopped_epoch, self.stopping_reason_message = trainer.current_epoch, reason
            trainer.ours.stop(reason or f"early stopping: {type(self).__name__}")
        elif reason and self.verbose:
            self._log_info(trainer, reason, self.log_rank_zero_only)

    def _has_value(self, trainer: Any, logs: dict[str, Tensor]) -> bool:
        if self.monitor not in logs and not trainer.session.has_validated:
            return False
        return self._validate_condition_metric(logs)

    def _validate_condition_metric(self, logs: dict[str, Tensor]) -> bool:
        if self.monitor not in logs and self.strict:
            raise PacelineError(
                f"EarlyStopping watches {self.monitor!r}, which was not logged",
                code="metric-not-logged",
                got=f"logged: {', '.join(logs) or 'nothing'}",
                meant=nearest(self.monitor, logs),
            )
        return self.monitor in logs

    def _evaluate_stopping_criteria(self, current: Tensor) -> tuple[bool, str | None]:
        """Whether the run stops, and a sentence on it or on a better value."""
        is_better, reasons = self.monitor_op, EarlyStoppingReason
        good, bad = self.stopping_threshold, self.divergence_threshold
        shown = f"early stopping: {self.monitor}"
        if self.check_finite and not torch.isfinite(current):
            return self._stops(reasons.NON_FINITE_METRIC, f"{shown} is {float(current)}")
        shown_value = f"{shown} is {float(current):.6g}"
        if good is not None and is_better(current, good):
            return self._stops(reasons.STOPPING_THRESHOLD, f"{shown_value}, better than {good:g}")
        if bad is not None and is_better(-current, -bad):
            return self._stops(reasons.DIVERGENCE_THRESHOLD, f"{shown_value}, worse than {bad:g}")
        if is_better(current - self.min_delta, self.best_score.to(current.device)):
            message = self._improvement_message(current)
            self.best_score, self.wait_count = current, 0
            return False, message
        self.wait_count += 1
        if self.wait_count < self.patience:
            return False, None
        best = f"{shown} was best at {float(self.best_score):.6g}, {self.wait_count} validations ago"
        return self._stops(reasons.PATIENCE_EXHAUSTED, best)

    def _stops(self, reason: EarlyStoppingReason, message: str) -> tuple[bool, str]:
        self.stopping_reason = reason
        return True, message

    def _improvement_message(self, current: Tensor) -> str:
        return f"{self.monitor} improved from {float(self.best_score):.6g} to {float(current):.6g}"

    @staticmethod
    def _log_info(trainer: Any, message: str, log_rank_zero_only: bool) -> None:
        trainer.print(message)
