"""EMA: an exponential moving average of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ...common.argument_checks import NAME_OR_NONE, PART, STEPS, SWITCH, check_arguments
from ...durations import Duration
from .weight_average import WeightAverage

if TYPE_CHECKING:
    from ..trainer_view import TrainerView


class EMA(WeightAverage):
    """Averages the weights exponentially: ``average = decay * average + (1 - decay) * weights``.

    The first update copies the weights. Validations of the fit use the average, and after the fit the
    module has it. Buffers, such as running statistics, are not averaged.

    Args:
        decay: What remains of the average in an update, from 0 to 1.
        every: Steps between two updates: 1 or ``"10st"``.
        start: The step from which on weights go into it.
        warmup: Let the decay of update n be at most (1 + n) / (10 + n), n from 1, as in TensorFlow's
            ``ExponentialMovingAverage(num_updates=...)``: early weights are forgotten sooner.
        validate: Use the average in the validations of the fit.
        name: The key of its state, where two of this class are given.

    Attributes:
        averaged: How often weights went into the average.

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> ema = EMA(decay=0.99)
        >>> trainer = Trainer(max_epochs=1, callbacks=ema, progress=False, run_dir=None)
        >>> run = trainer.fit(Net(), train_loader, val_loader)
        >>> ema.averaged
        4
    """

    def __init__(
        self,
        decay: float = 0.999,
        every: Any = 1,
        *,
        start: Any = 1,
        warmup: bool = False,
        validate: bool = True,
        name: str | None = None,
    ) -> None:
        check_arguments(
            "EMA",
            decay=(decay, PART),
            every=(every, STEPS),
            start=(start, STEPS),
            warmup=(warmup, SWITCH),
            validate=(validate, SWITCH),
            name=(name, NAME_OR_NONE),
        )
        super().__init__(validate, name)
        self.decay, self.warmup = decay, warmup
        self.every, self.start = (int(Duration.parse(steps).amount) for steps in (every, start))

    def on_step_end(self, trainer: TrainerView, outputs: list[Any]) -> None:
        step = trainer.global_step
        if step >= self.start and step % self.every == 0:
            self.add()

    def combine(self, values: list[Tensor], weights: list[Tensor]) -> None:
        n = self.averaged
        decay = min(self.decay, (1 + n) / (10 + n)) if self.warmup else self.decay
        get_ema_multi_avg_fn(decay)(values, weights, n)
