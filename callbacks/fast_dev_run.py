"""Ends the epoch after a few steps: what ``Trainer(fast_dev_run=...)`` adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import Callback

if TYPE_CHECKING:
    from .trainer_view import TrainerView


class FastDevRun(Callback):
    """Ends the epoch after so many steps, with all that happens at the end of one.

    Args:
        steps: Optimizer steps.
    """

    def __init__(self, steps: int) -> None:
        self._steps, self._first = steps, 0

    def on_fit_start(self, trainer: TrainerView) -> None:
        self._first = trainer.global_step

    def on_step_end(self, trainer: TrainerView, outputs: list[Any]) -> None:
        if trainer.global_step - self._first >= self._steps:
            trainer.loop.end_epoch()
