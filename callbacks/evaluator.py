"""Evaluator: validation on further data, at its own times."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..common.argument_checks import DURATION, NAME, check_arguments
from ..durations import Cadence, Duration, StepPosition
from .base import Callback

if TYPE_CHECKING:
    from .trainer_view import TrainerView


class Evaluator(Callback):
    """Runs ``validation_step`` on data besides the validation data: ``val/<name>/loss`` and so on.

    The values are exact means over the data, each sample counted once, and are also in a line of the log.
    The module's validation hooks are called, those of callbacks are not: ``EarlyStopping`` and
    ``Checkpoint`` judge the run's own validation. A pass that a signal interrupts is repeated when the run
    resumes.

    Args:
        dataloader: The data.
        name: What its values are called, and the key of its state.
        every: The duration between two passes.

    Raises:
        PacelineError: for arguments that are not right, and a module without ``validation_step``.

    Example:
        >>> others = [Evaluator(val_loader, "easy"), Evaluator(val_loader, "hard", every="2ep")]
        >>> trainer = Trainer(max_epochs=2, callbacks=others, progress=False)
        >>> run = trainer.fit(Net(), train_loader, val_loader)
        >>> run.metrics["val/hard/loss"].steps
        [8]
    """

    def __init__(self, dataloader: Any, name: str, every: Any = "1ep") -> None:
        check_arguments("Evaluator", name=(name, NAME), every=(every, DURATION))
        self.dataloader, self.name, self.every = dataloader, name, Duration.parse(every)
        self._pending = False
        self._evaluate: Callable[[], dict[str, float] | None] = dict

    def on_setup(self, trainer: TrainerView, stage: str) -> None:
        self._pending = False  # a resumed run gets its state back after this

    def on_fit_start(self, trainer: TrainerView) -> None:
        self._cadence = Cadence(self.every, trainer.steps_per_epoch)
        self._evaluate = trainer.loop.evaluation_of(self.dataloader, str(self.name))

    def on_train_epoch_start(self, trainer: TrainerView) -> None:
        if self._pending:
            self._run(trainer)

    def on_step_boundary(self, trainer: TrainerView) -> None:
        if trainer.counters.is_due(self._cadence):
            self._run(trainer)

    def next_due(self, at: StepPosition) -> float:
        return self._cadence.next_step(at)

    def _run(self, trainer: TrainerView) -> None:
        values = self._evaluate()
        self._pending = values is None
        if values:
            shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            trainer.log_line(f"step {trainer.global_step}: {shown}")

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        self._evaluate = dict  # the other one holds the parts of the run

    def state_dict(self) -> dict[str, Any]:
        return {"pending": self._pending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._pending = bool(state["pending"])
