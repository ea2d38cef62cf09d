"""LearningRateMonitor: learning rates, momenta and weight decays of all parameter groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...common.argument_checks import STEPS, SWITCH, check_arguments
from ...durations import Duration, StepPosition
from ..base import Callback

if TYPE_CHECKING:
    from ..trainer_view import TrainerView


class LearningRateMonitor(Callback):
    """Writes the learning rate of each parameter group every so many steps: that of the step just made.

    Log points have the rates anyway: this is for a schedule that is to be seen step by step, and for
    momenta and weight decays. Names are ``lr/AdamW``, or ``lr/AdamW/group-1`` where there are several.

    Args:
        every: Steps between two rows: 10 or ``"10st"``; 1 writes a row in each step.
        momentum: Also ``momentum/...``: ``momentum``, or the first of ``betas``.
        weight_decay: Also ``weight_decay/...``.

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> rates = LearningRateMonitor(every=1, weight_decay=True)
        >>> trainer = Trainer(max_epochs=1, callbacks=rates, progress=False)
        >>> run = trainer.fit(Net(), train_loader)
        >>> run.metrics["weight_decay/SGD"].steps
        [1, 2, 3, 4]
    """

    def __init__(self, every: Any = 50, *, momentum: bool = False, weight_decay: bool = False) -> None:
        check_arguments(
            "LearningRateMonitor",
            every=(every, STEPS),
            momentum=(momentum, SWITCH),
            weight_decay=(weight_decay, SWITCH),
        )
        self.every = int(Duration.parse(every).amount)
        chosen = {"lr": True, "momentum": momentum, "weight_decay": weight_decay}
        self._settings = [name for name, is_chosen in chosen.items() if is_chosen]

    def next_due(self, at: StepPosition) -> float:
        return (at.global_step // self.every + 1) * self.every

    def on_step_end(self, trainer: TrainerView, outputs: list[Any]) -> None:
        if trainer.global_step % self.every == 0:
            trainer.publish(trainer.loop.optimizer_settings(*self._settings))
