"""Norms: how large gradients and weights are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...common.argument_checks import STEPS, SWITCH, check_arguments
from ...durations import Duration
from ..base import Callback

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from ..trainer_view import TrainerView


class Norms(Callback):
    """Writes the 2-norms of gradients and weights: ``norm/gradient`` and ``norm/weight``.

    Both are of the whole model, before the update of the step; gradients are reduced and unscaled, not yet
    clipped. Nothing is gathered that is not gathered anyway, except under ZeRO, where one gradient or
    weight after the other is.

    Args:
        every: Steps between two measurements: 50 or ``"50st"``.
        gradients: Whether gradients are measured.
        weights: Whether weights are.
        each: Also of each parameter: ``norm/gradient/<name>``.

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> trainer = Trainer(max_epochs=1, callbacks=Norms(every=2), progress=False)
        >>> run = trainer.fit(Net(), train_loader)
        >>> run.metrics["norm/gradient"].steps
        [2, 4]
    """

    def __init__(
        self, every: Any = 50, *, gradients: bool = True, weights: bool = True, each: bool = False
    ) -> None:
        check_arguments(
            "Norms",
            every=(every, STEPS),
            gradients=(gradients, SWITCH),
            weights=(weights, SWITCH),
            each=(each, SWITCH),
        )
        self.every = int(Duration.parse(every).amount)
        self.gradients, self.weights, self.each = gradients, weights, each
        self._found: dict[str, float] = {}

    def on_before_optimizer_step(self, trainer: TrainerView, optimizer: Optimizer) -> None:
        if (trainer.global_step + 1) % self.every:
            return
        if self.gradients:
            self._take("gradient", trainer.strategy.weights.gradient_norms(trainer.module))
        if self.weights:
            self._take("weight", trainer.strategy.weights.weight_norms(trainer.module))

    def _take(self, what: str, norms: dict[str, Tensor]) -> None:
        values = {name: float(norm) for name, norm in norms.items()}
        self._found[f"norm/{what}"] = math.sqrt(sum(value**2 for value in values.values()))
        if self.each:
            self._found |= {f"norm/{what}/{name}": value for name, value in values.items()}

    def on_step_end(self, trainer: TrainerView, outputs: list[Any]) -> None:
        found, self._found = self._found, {}
        if found:
            trainer.publish(found)
