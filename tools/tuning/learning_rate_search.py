"""``find_learning_rate``: the loss of a copy of the module while its learning rate rises.

L. N. Smith, "Cyclical Learning Rates for Training Neural Networks", 2017, arXiv:1506.01186, section 3.3.
The average of the losses and the bound on them are fastai's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.optim import Optimizer

from ...callbacks import Callback
from ...common.argument_checks import ABOVE_ONE_OR_NONE, ABOVE_ZERO, SOME_STEPS, check_arguments, one_of
from ...errors import PacelineError
from ...schedules import RunLength
from ...strategies.launch.job_notes import uncaught_errors_shortened
from ...trainer.configured_optimizers import read_configuration
from ...trainer.data.sources import as_datamodule
from ...trainer.loops.lifecycle import check_stage
from ...trainer.on_ranks import on_ranks
from ...trainer.trial import run_trial
from .figure import drawn

if TYPE_CHECKING:
    from ...trainer.module import TrainModule
    from ...trainer.trainer import Trainer

_BETA = 0.98  # fastai's
_FEWEST = 10
_ROUNDING = 1e-9
_MODES = one_of("exponential", "linear")
_LOSS = "train/loss"


@dataclass(frozen=True)
class LearningRateSearch:
    """What ``find_learning_rate`` found.

    Attributes:
        module: The class of the module.
        mode: ``"exponential"`` or ``"linear"``.
        rates: The learning rate of the first parameter group in each step.
        losses: The loss of each step, over all ranks.
        smoothed: Their exponential average (0.98 of the one before), corrected for its start at 0.
        suggestion: The rate at which ``smoothed`` falls fastest from step to step, before it is lowest and
            after the first tenth of the steps, where few losses are averaged. None: see ``reason``.
        reason: Why there is no suggestion; None where there is one.
        diverged_at: The rate that ended the search, because the loss rose too high or was not finite; a
            loss that is not finite is not among ``losses``. None where all steps were taken.
    """

    module: str
    mode: str
    rates: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    suggestion: float | None
    reason: str | None
    diverged_at: float | None

    def __str__(self) -> str:
        if self.suggestion is None:
            return f"no learning rate is suggested for {self.module}: {self.reason}"
        diverged = "" if self.diverged_at is None else f", and it diverges at {self.diverged_at:.3g}"
        return (
            f"learning rate {self.suggestion:.3g}: there the loss of {self.module} falls fastest{diverged}"
        )

    def plot(self, path: str | Path) -> None:
        """Draw the losses over the learning rates, with the suggestion, into a PNG.

        Args:
            path: The file; its folder is made if it does not exist.
        """
        with drawn(path, f"learning rate of {self.module}") as axes:
            axes.plot(self.rates, self.losses, color="0.7", linewidth=1, label="loss")
            axes.plot(self.rates, self.smoothed, linewidth=1.8, label="smoothed")
            if self.suggestion is not None:
                at = self.smoothed[self.rates.index(self.suggestion)]
                label = f"suggestion {self.suggestion:.3g}"
                axes.plot(self.suggestion, at, "o", color="tab:red", label=label)
            if self.diverged_at is not None:
                label = f"diverged at {self.diverged_at:.3g}"
                axes.axvline(self.diverged_at, color="tab:red", linestyle=":", label=label)
            if self.mode == "exponential":
                axes.set_xscale("log")
            if self.losses:  # one loss far above the others would flatten the curve
                low, high = min(self.losses), max(*self.smoothed, self.losses[0])
                margin = 0.08 * (high - low) or 1.0
                axes.set_ylim(low - margin, high + margin)
            axes.set_xlabel("learning rate")
            axes.set_ylabel("loss")
            axes.legend()


class _Sweep(Callback):
    """Sets the rate of each step, and ends the trial where the loss diverges."""

    def __init__(self, rates: Sequence[float], stop_factor: float | None) -> None:
        self.all_rates, self._stop_factor = rates, stop_factor
        self.losses: list[float] = []
        self.smoothed: list[float] = []
        self.rates: list[float] = []
        self.diverged_at: float | None = None
        self._average = 0.0
        self._ratios: list[float] = []

    def on_setup(self, trainer: Any, stage: str) -> None:
        """Leave the schedules out: they would change the rate, and what goes with it."""
        module = trainer.module
        # A partial, for a copy of the module to have its own.
        vars(module)["configure_optimizers"] = partial(
            _optimizers_alone, module, module.configure_optimizers, RunLength(len(self.all_rates), 1)
        )

    def on_fit_start(self, trainer: Any) -> None:
        groups = trainer.optimizers[0].param_groups
        # A schedule that begins with a warm-up has set the rate already.
        initial = [float(group.get("initial_lr", group["lr"])) for group in groups]
        if not initial[0]:
            raise PacelineError(
                "find_learning_rate keeps the ratio of each parameter group's learning rate to the first "
                "group's, which is 0",
                code="search-not-possible",
                fix="give the first group a learning rate above 0 in configure_optimizers",
            )
        self._ratios = [rate / initial[0] for rate in initial]

    def on_step_start(self, trainer: Any, batches: list[Any]) -> None:
        rate = self.all_rates[trainer.global_step]
        for group, ratio in zip(trainer.optimizers[0].param_groups, self._ratios, strict=True):
            is_tensor = isinstance(group["lr"], torch.Tensor)
            group["lr"] = torch.full_like(group["lr"], rate * ratio) if is_tensor else rate * ratio

    def on_step_boundary(self, trainer: Any) -> None:
        loss = trainer.metrics.pop(_LOSS, None)  # a step that was skipped has none
        if loss is None or self.diverged_at is not None:
            return
        rate = self.all_rates[trainer.global_step - 1]
        if math.isfinite(loss):
            self.rates.append(rate)
            self.losses.append(loss)
            self._average = _BETA * self._average + (1 - _BETA) * loss
            self.smoothed.append(self._average / (1 - _BETA ** len(self.losses)))
            best = min(self.smoothed)
            # A factor bounds nothing where losses are below 0.
            if self._stop_factor is None or best <= 0 or self.smoothed[-1] <= self._stop_factor * best:
                return
        self.diverged_at = rate
        trainer.stop("the loss diverges")
        trainer._run.stop.agree()  # every rank knows the loss: none takes another step


def _optimizers_alone(module: Any, configured: Callable[[], Any], length: RunLength) -> list[Optimizer]:
    return read_configuration(module, configured(), module.automatic_optimization, length).optimizers


@uncaught_errors_shortened()
@on_ranks
def find_learning_rate(
    trainer: Trainer,
    module: TrainModule,
    train_dataloader: Any = None,
    datamodule: Any = None,
    *,
    lowest: float = 1e-7,
    highest: float = 1.0,
    steps: int = 100,
    mode: Literal["exponential", "linear"] = "exponential",
    stop_factor: float | None = 4.0,
) -> LearningRateSearch:
    """Train a copy of ``module`` while the learning rate rises; suggest the rate of steepest descent.

    The copy is trained on all ranks, with the trainer's strategy, precision, clipping, batch sizes and
    seed, without the schedules of ``configure_optimizers``. Weights, random generators and data with a
    ``state_dict`` stay as they are; ``set_epoch`` of the data is called. Nothing is written.
    (L. N. Smith, 2017, arXiv:1506.01186.)

    Args:
        trainer: Its arguments are the copy's; it stays as it is.
        module: Stays as it is.
        train_dataloader: The training data, as ``fit`` takes it.
        datamodule: A ``DataModule``, as ``fit`` takes it.
        lowest: The rate of the first step.
        highest: The rate of the last step.
        steps: Optimizer steps at most, over as many epochs as they need.
        mode: Whether the rate rises by a factor or by an amount in each step. Parameter groups keep
            the ratio of their rates.
        stop_factor: End when the smoothed loss is above so many times its lowest value, where that is
            above 0; None does not. A loss that is not finite always ends the search.

    Returns:
        The rates and losses; ``suggestion``, or None with a ``reason``; ``plot(path)`` draws them.

    Raises:
        PacelineError: for wrong arguments, under manual optimization, and whatever ``fit`` raises.

    Example:
        >>> from paceline.tools import find_learning_rate
        >>> search = find_learning_rate(trainer, Net(), train_loader, steps=30)
        >>> len(search.rates), search.rates[0]
        (30, 1e-07)
        >>> search.plot("learning-rate.png")
    """
    check_arguments(
        "find_learning_rate",
        lowest=(lowest, ABOVE_ZERO),
        highest=(highest, ABOVE_ZERO),
        steps=(steps, SOME_STEPS),
        mode=(mode, _MODES),
        stop_factor=(stop_factor, ABOVE_ONE_OR_NONE),
    )
    if lowest >= highest:
        raise PacelineError(
            "find_learning_rate increases the rate from lowest to highest",
            code="invalid-value",
            got=f"lowest={lowest}, highest={highest}",
            allowed="a lowest below highest",
        )
    check_stage("find_learning_rate", module, trainer.stage)
    if not module.automatic_optimization:
        raise PacelineError(
            "find_learning_rate sets the rate of each step, and under manual optimization the module takes "
            "the steps itself",
            code="manual-optimization",
            fix="set self.optimizers().param_groups[0]['lr'] in training_step, and log the loss",
        )
    sweep = _Sweep(_rates(lowest, highest, steps, mode), stop_factor)
    batch_size = trainer.settings.batch_size
    data = as_datamodule(train_dataloader, datamodule)
    run_trial(trainer, module, data, steps, sweep, nonfinite="ignore", batch_size=batch_size)
    index, reason = _steepest(sweep.smoothed)
    return LearningRateSearch(
        module=type(module).__name__,
        mode=mode,
        rates=tuple(sweep.rates),
        losses=tuple(sweep.losses),
        smoothed=tuple(sweep.smoothed),
        suggestion=None if index is None else sweep.rates[index],
        reason=reason,
        diverged_at=sweep.diverged_at,
    )


def _rates(lowest: float, highest: float, steps: int, mode: str) -> list[float]:
    parts = [step / max(steps - 1, 1) for step in range(steps)]
    if mode == "linear":
        return [lowest + (highest - lowest) * part for part in parts]
    return [lowest * (highest / lowest) ** part for part in parts]


def _steepest(smoothed: list[float]) -> tuple[int | None, str | None]:
    """Where the curve falls fastest, as the mean of the slopes on both sides; else why nowhere."""
    if len(smoothed) < _FEWEST:
        return None, f"{len(smoothed)} losses were measured, and {_FEWEST} are needed"
    bottom = min(
        smoothed.index(min(smoothed)), len(smoothed) - 2
    )  # what falls after it has diverged before
    slopes = [(smoothed[i + 1] - smoothed[i - 1], i) for i in range(len(smoothed) // 10, bottom + 1)]
    slope, index = min(slopes, default=(0.0, 0))
    if slope < -_ROUNDING * abs(smoothed[index]):
        return index, None
    return None, "the smoothed loss does not fall after the first tenth of the steps"
