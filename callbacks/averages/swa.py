"""SWA: the plain mean of the weights of a run's last part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim.swa_utils import get_swa_multi_avg_fn

from ...common.argument_checks import DURATION, NAME_OR_NONE, SWITCH, check_arguments
from ...durations import Cadence, Duration, StepPosition
from ...errors import PacelineError
from .weight_average import WeightAverage

if TYPE_CHECKING:
    from ..trainer_view import TrainerView


class SWA(WeightAverage):
    """Averages the weights of many points of the run's last part, each with the same share.

    Stochastic weight averaging (Izmailov et al. 2018, https://arxiv.org/abs/1803.05407). At the end of the
    fit batch norms get the statistics of the averaged model by one pass over the training data without
    updates, averaged over the ranks, and the module has the average. The learning rate is your schedule's:
    ``torch.optim.swa_utils.SWALR`` holds it constant.

    Args:
        start: Points later than this are averaged: a duration, or a part of the run from 0.0 to 1.0.
        every: The duration between two points, from the start of the run.
        validate: Use the average in the validations of the fit. Batch norms have the statistics of the
            trained weights there.
        name: The key of its state, where two of this class are given.

    Attributes:
        averaged: How many points are averaged.

    Raises:
        PacelineError: for arguments that are not right, and for a part of a run without a known length.

    Example:
        >>> swa = SWA(start="1ep")
        >>> trainer = Trainer(max_epochs=3, callbacks=swa, progress=False, run_dir=None)
        >>> run = trainer.fit(Net(), train_loader)
        >>> swa.averaged  # the ends of epochs 2 and 3
        2
    """

    def __init__(
        self, start: Any = 0.75, every: Any = "1ep", *, validate: bool = False, name: str | None = None
    ) -> None:
        is_part = isinstance(start, float) and 0 <= start <= 1
        kinds = {"every": (every, DURATION), "validate": (validate, SWITCH), "name": (name, NAME_OR_NONE)}
        check_arguments("SWA", **kinds, **({} if is_part else {"start": (start, DURATION)}))
        super().__init__(validate, name)
        self.start, self.every = start if is_part else Duration.parse(start), Duration.parse(every)

    def on_fit_start(self, trainer: TrainerView) -> None:
        super().on_fit_start(trainer)
        self._cadence = Cadence(self.every, trainer.steps_per_epoch)
        if isinstance(self.start, float) and trainer.total_steps is None:
            raise PacelineError(
                f"SWA(start={self.start}) is a part of the run, and how many steps it has is unknown",
                code="run-length-unknown",
                fix='a duration: SWA(start="10ep"), or max_steps=...',
            )

    def _has_begun(self, trainer: TrainerView) -> bool:
        if isinstance(self.start, float):
            return trainer.global_step > self.start * (trainer.total_steps or 0)
        return trainer.counters.elapsed(self.start.unit) > self.start.amount

    def on_step_boundary(self, trainer: TrainerView) -> None:
        if trainer.counters.is_due(self._cadence) and self._has_begun(trainer):
            self.add()

    def next_due(self, at: StepPosition) -> float:
        return self._cadence.next_step(at)

    def combine(self, values: list[Tensor], weights: list[Tensor]) -> None:
        get_swa_multi_avg_fn()(values, weights, self.averaged)

    def finish(self, trainer: TrainerView) -> None:
        norms: list[Any] = [part for part in trainer.module.modules() if _has_statistics(part)]
        if not norms or trainer.interrupted:
            return
        buffers = [buffer for norm in norms for buffer in norm.buffers(recurse=False)]
        before, momenta = [b.clone() for b in buffers], [norm.momentum for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean over the batches
        try:
            trainer.loop.forward_training_data()
            found = [_mean_over_ranks(trainer, buffer) for buffer in buffers]
        except PacelineError as error:  # of data that cannot be read once more: the run is whole
            lines = " ".join(str(error).split())
            trainer.log_line(f"warning: batch norms keep their statistics: {lines}")
            found = before
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
        for buffer, value in zip(buffers, found, strict=True):
            buffer.copy_(value)


def _has_statistics(part: nn.Module) -> bool:
    return hasattr(part, "reset_running_stats") and getattr(part, "running_mean", None) is not None


def _mean_over_ranks(trainer: TrainerView, buffer: Tensor) -> Tensor:
    if not buffer.is_floating_point():
        return buffer.clone()
    mean: Tensor = trainer.strategy.collectives.all_reduce(buffer) / trainer.world_size
    return mean
