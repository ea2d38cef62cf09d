"""What the time of a fit is spent on, by the order of hooks; for callbacks that report it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..base import Callback

if TYPE_CHECKING:
    from ..trainer_view import CheckpointWriter, TrainerView

PHASES = ("step", "data", "validation", "save")


class PhaseClock:
    """Adds the time between two hooks to the phase that they enclose. It is the host's time.

    ``data`` is from a step boundary to the start of the next step, ``step`` from there to the boundary,
    without what the trainer spends in a validation or a save in between.

    Attributes:
        seconds: By phase.
        running: Whether time is added.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._phase = ""
        self._since = self._saving = 0.0
        self._checkpoints: CheckpointWriter | None = None

    @property
    def running(self) -> bool:
        """Whether time is added to a phase."""
        return self._checkpoints is not None

    def start(self, trainer: TrainerView) -> None:
        """Add to ``data`` from here on, unless it runs already; for ``on_train_epoch_start``."""
        if not self.running:
            self._checkpoints = trainer.checkpoints
            self._phase, self._since = "data", time.perf_counter()
            self._saving = self._checkpoints.seconds

    def enter(self, phase: str) -> None:
        """Add what has passed to the phase under way, and begin this one; after ``start`` only."""
        if self._checkpoints is None:
            return
        now, saving = time.perf_counter(), self._checkpoints.seconds
        saved = saving - self._saving
        self.seconds["save"] += saved
        self.seconds[self._phase] += now - self._since - saved
        self._phase, self._since, self._saving = phase, now, saving

    def stop(self) -> None:
        """Add to no phase from here on."""
        self.enter("")
        self._checkpoints = None


class PhaseCallback(Callback):
    """The base of callbacks that report phases: its hooks are the ends of the phases of a fit."""

    def __init__(self) -> None:
        self._clock = PhaseClock()

    def on_train_epoch_start(self, trainer: TrainerView) -> None:
        self._clock.start(trainer)

    def on_step_start(self, trainer: TrainerView, batches: list[Any]) -> None:
        self._clock.enter("step")

    def on_validation_start(self, trainer: TrainerView) -> None:
        self._clock.enter("validation")

    def on_validation_end(self, trainer: TrainerView) -> None:
        self._clock.enter("step")

    def on_step_boundary(self, trainer: TrainerView) -> None:
        self._clock.enter("data")

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        self._clock.stop()
