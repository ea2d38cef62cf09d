"""Stop when a value no longer gets better."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

from ..common.argument_checks import (
    AMOUNT,
    COUNT,
    NAME_OR_NONE,
    NUMBER_OR_NONE,
    SWITCH,
    TEXT,
    check_arguments,
    check_names,
)
from .base import Callback
from .monitors.monitor import MODE, Monitor

if TYPE_CHECKING:
    from .trainer_view import TrainerView


class EarlyStopping(Callback):
    """Stops the run after ``patience`` validations in a row without a better value.

    Args:
        monitor: The value to watch. One of training (``train/...``) is looked at after each epoch.
        mode: ``"min"`` or ``"max"``; None takes it from the name.
        patience: Validations without a better value until the run stops: ``wait >= patience``.
        min_delta: What counts as better must be better by more than this.
        check_finite: Stop at once when the value is NaN or infinite.
        stopping_threshold: Stop at once when the value is as good as this.
        divergence_threshold: Stop at once when the value is worse than this.
        name: The key of its state, where there are two of this class.

    Attributes:
        best: The best value so far; None before the first.
        wait: Validations since then.

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> stops = EarlyStopping("val/loss", patience=1, min_delta=10.0)
        >>> trainer = Trainer(max_epochs=9, callbacks=stops, progress=False, run_dir=None)
        >>> run = trainer.fit(Net(), train_loader, val_loader)
        >>> trainer.epoch, stops.wait
        (2, 1)
    """

    def __init__(
        self,
        monitor: str,
        mode: str | None = None,
        patience: int = 3,
        min_delta: float = 0.0,
        *,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        name: str | None = None,
        **unknown: Any,
    ) -> None:
        check_names(EarlyStopping, unknown)
        check_arguments(
            "EarlyStopping",
            monitor=(monitor, TEXT),
            mode=(mode, MODE),
            patience=(patience, COUNT),
            min_delta=(min_delta, AMOUNT),
            check_finite=(check_finite, SWITCH),
            stopping_threshold=(stopping_threshold, NUMBER_OR_NONE),
            divergence_threshold=(divergence_threshold, NUMBER_OR_NONE),
            name=(name, NAME_OR_NONE),
        )
        self._monitor = Monitor(monitor, mode, "EarlyStopping")
        self.patience, self.min_delta, self.check_finite = patience, min_delta, check_finite
        self.stopping_threshold, self.divergence_threshold = stopping_threshold, divergence_threshold
        self.name = name
        self.best: float | None = None
        self.wait = 0

    @property
    def monitor(self) -> str:
        """The full name of the value that is watched."""
        return self._monitor.name

    def on_setup(self, trainer: TrainerView, stage: str) -> None:
        if stage == "fit":  # a resumed run gets its state back after this
            self.best, self.wait = None, 0

    def on_load_checkpoint(self, trainer: TrainerView, state: dict[str, Any]) -> None:
        if self.wait >= self.patience:
            trainer.stop(f"early stopping: {self.monitor} got no better before the checkpoint")

    def on_validation_end(self, trainer: TrainerView) -> None:
        if self.monitor.startswith("val/") and trainer.loop.is_fit_validation:
            self._look(trainer)

    def on_train_epoch_end(self, trainer: TrainerView) -> None:
        if not self.monitor.startswith("val/"):
            self._look(trainer)

    def _look(self, trainer: TrainerView) -> None:
        value = trainer.require_metric(self.monitor, "EarlyStopping")
        if self.check_finite and not math.isfinite(value):
            trainer.stop(f"early stopping: {self.monitor} is {value}")
            return
        good, bad = self.stopping_threshold, self.divergence_threshold
        if good is not None and (value == good or self._monitor.better(value, good)):
            self.best = value
            trainer.stop(f"early stopping: {self.monitor} is {value:.6g}, as good as {good:g}")
            return
        if bad is not None and self._monitor.better(bad, value):
            trainer.stop(f"early stopping: {self.monitor} is {value:.6g}, worse than {bad:g}")
            return
        if self._monitor.better(value, self.best, self.min_delta):
            self.best, self.wait = value, 0
            return
        self.wait += 1
        if self.wait >= self.patience:
            best = "was never a number" if self.best is None else f"was best at {self.best:.6g}"
            trainer.stop(f"early stopping: {self.monitor} {best}, {self.wait} validations ago")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "wait": self.wait, "watched": [self._monitor.name, self._monitor.mode]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["watched"] == self.state_dict()["watched"]:  # what was counted of another value is none
            best = state["best"]
            self.best, self.wait = None if best is None else float(best), operator.index(state["wait"])
