"""Lookahead: every few steps, the weights are pulled to their slow average."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ...common.argument_checks import COUNT, INSIDE_ONE, NAME_OR_NONE, check_arguments
from ...errors import PacelineError
from .weight_average import WeightAverage

if TYPE_CHECKING:
    from ..trainer_view import TrainerView


class Lookahead(WeightAverage):
    """Every few steps, slow weights move a part of the way to the weights, which then take their place.

    Lookahead (Zhang et al. 2019, https://arxiv.org/abs/1907.08610): the optimizer explores, and the slow
    weights follow. Validations use the slow weights, and the module has them after the fit. Buffers, such
    as running statistics, and the optimizer's state are left as they are.

    Args:
        every: Optimizer steps between two pulls.
        alpha: How far the slow weights move, between 0 and 1; or a function of the part of the run that is
            done.
        name: The key of its state, where two of this class are given.

    Raises:
        PacelineError: for arguments that are not right, and for a function in a run of unknown length.

    Example:
        >>> lookahead = Lookahead(every=2, alpha=0.5)
        >>> trainer = Trainer(max_steps=4, callbacks=lookahead, progress=False, run_dir=None)
        >>> run = trainer.fit(Net(), train_loader)
        >>> lookahead.averaged
        2
    """

    def __init__(
        self, every: int = 5, alpha: float | Callable[[float], float] = 0.5, *, name: str | None = None
    ) -> None:
        kinds = {"every": (every, COUNT), "name": (name, NAME_OR_NONE)}
        check_arguments("Lookahead", **kinds, **({} if callable(alpha) else {"alpha": (alpha, INSIDE_ONE)}))
        super().__init__(validate=True, name=name)
        self.every, self.alpha = every, alpha

    def on_fit_start(self, trainer: TrainerView) -> None:
        super().on_fit_start(trainer)
        if callable(self.alpha) and trainer.total_steps is None:
            raise PacelineError(
                "Lookahead(alpha=<function>) is given the part of the run that is done, and how many steps "
                "it has is unknown",
                code="run-length-unknown",
                fix="a number: Lookahead(alpha=0.5), or max_steps=...",
            )

    @torch.no_grad()
    def on_step_end(self, trainer: TrainerView, outputs: list[Any]) -> None:
        step, slow = trainer.global_step, self._ordered()
        if step % self.every:
            return
        alpha = self.alpha(step / (trainer.total_steps or 1)) if callable(self.alpha) else self.alpha
        for value, part in zip(slow, self._parts.values(), strict=True):
            value.lerp_(part.to(value.dtype), alpha)
        self._write(trainer, slow, for_training=True)
        self.averaged += 1
