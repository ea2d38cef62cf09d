"""What Lightning's trainer shows, read from ours."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from .....errors import PacelineError, nearest
from .....trainer.data.combined_loader import CombinedLoader
from ...translation.arguments import FOREVER, limits
from ...translation.validation_rule import ValidationRule
from ..accelerators import Accelerator, accelerator_of
from ..strategies.view import StrategyView
from .fit_loop import FitLoop
from .parts import TrainerParts
from .states import RunningStage, TrainerFn, TrainerState, TrainerStatus

_HERE = {
    "validate_loop": "num_val_batches",
    "test_loop": "len(dataloader)",
    "predict_loop": "len(dataloader), BasePredictionWriter",
    "tune": "find_learning_rate and find_batch_size of paceline.tools",
    "tuner": "find_learning_rate and find_batch_size of paceline.tools",
    "lr_find": "find_learning_rate of paceline.tools",
    "training_type_plugin": "strategy",
    "accelerator_connector": "strategy.root_device",
    "is_gpu": "strategy.root_device.type",
    "logger_connector": "callback_metrics",
    "checkpoint_connector": "checkpoint_callback",
    "lr_schedulers": "lr_scheduler_configs",
    "precision_plugin": "strategy.precision",
    "root_gpu": "strategy.root_device",
    "train": "fit(model, dataloader)",
    "evaluate": "validate(model, dataloader)",
}
_SETTINGS = (
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "check_val_every_n_epoch",
    "fast_dev_run",
    "limit_train_batches",
    "limit_val_batches",
    "limit_test_batches",
    "limit_predict_batches",
    "overfit_batches",
    "reload_dataloaders_every_n_epochs",
    "min_epochs",
    "min_steps",
    "max_steps",
    "max_time",
    "barebones",
)


class TrainerView(TrainerParts):
    """The attributes of Lightning's trainer."""

    session: Any
    rule: ValidationRule
    _should_stop = False
    _steps: Any = None
    _made_for: Any = None
    _called: TrainerFn | None = None

    def __getattr__(self, name: str) -> Any:
        if name in _SETTINGS and "given" in vars(self):
            found = self.given[name]
            return 1.0 if found is None and name.startswith("limit_") else found
        if name.startswith("__"):
            raise AttributeError(name)
        way = _HERE.get(name)
        near = nearest(name, [one for one in dir(type(self)) if one[0] != "_"])
        hint = f"; use {way}" if way else (f"; did you mean {near}?" if near else "")
        raise AttributeError(f"Trainer has no attribute {name!r}{hint}")

    # -- where the run is ----------------------------------------------------------------------

    @property
    def current_epoch(self) -> int:
        """The epoch under way, from 0."""
        return int(self.ours.epoch) if self.session is None else self.session.current_epoch

    @property
    def global_step(self) -> int:
        """Optimizer steps; under manual optimization those of all optimizers."""
        return self.session.global_step if self.session is not None else 0

    @property
    def max_epochs(self) -> int:
        """The limit on epochs; -1 without one."""
        if self.given["max_epochs"] == 0:
            return 0
        found = limits(self.given)["max_epochs"]
        return -1 if found is None or found >= FOREVER else int(found)

    @property
    def estimated_stepping_batches(self) -> float:
        """Optimizer steps of the whole fit; ``max_steps`` where the length of the data is unknown."""
        found = self.session.total_steps if self.session is not None else math.inf
        return self.given["max_steps"] if math.isinf(found) and self.max_epochs != -1 else found

    @property
    def num_training_batches(self) -> float:
        """Batches of this rank in an epoch; infinite where that is unknown."""
        found = None if self.session is None else self.session.batches_per_epoch
        return math.inf if found is None else found

    @property
    def num_val_batches(self) -> list[float]:
        """Validation batches of each dataloader."""
        fit = self.ours._fit
        if fit is None or fit.validation is None:
            return []
        lengths = [feed.steps_per_epoch for feed in fit.validation.feeds.values()]
        return [math.inf if one is None else one for one in lengths]

    @property
    def num_sanity_val_batches(self) -> list[float]:
        """Those of them that are read before training."""
        return [min(self.num_sanity_val_steps, count) for count in self.num_val_batches]

    @property
    def is_last_batch(self) -> bool:
        """Whether the batch under way is the epoch's last."""
        session = self.session
        return session is not None and session.is_last_batch and session.adapter.in_last_batch

    @property
    def accumulate_grad_batches(self) -> int:
        """Batches in an optimizer step."""
        if self.session is None or self.ours._fit is None:
            return int(self.given["accumulate_grad_batches"])
        return int(self.session.accumulate)

    @accumulate_grad_batches.setter
    def accumulate_grad_batches(self, value: int) -> None:
        """From the next epoch on, or from the one that begins; an epoch under way keeps its steps."""
        if value == self.accumulate_grad_batches:
            return
        self.given["accumulate_grad_batches"], session = value, self.session
        if session is None or self.ours.stage != "fit":
            self._made_for = None  # another trainer of ours is made for the next fit
            return
        if self._steps is None:
            raise PacelineError(
                "trainer.accumulate_grad_batches is not set under manual optimization, nor beside a "
                "GradientAccumulationScheduler",
                code="read-only-attribute",
                fix="one of the two",
            )
        begun = session.batches_begun > 0
        self._steps.scheduling[session.current_epoch + begun] = value
        if begun:
            session.log_line(f"accumulate_grad_batches = {value} from the next epoch on")

    @property
    def val_check_interval(self) -> int | float:
        """Batches, or the part of an epoch, between two validations."""
        found: int | float = (
            1.0 if self.given["val_check_interval"] is None else self.given["val_check_interval"]
        )
        return found

    @property
    def val_check_batch(self) -> float | None:
        """Batches between two validations; infinite where that is unknown, None before a fit."""
        if self.session is None:
            return None
        batches = self.rule.batches(self.session.batches_per_epoch)
        return self.num_training_batches if batches is None else batches

    @property
    def log_every_n_steps(self) -> int:
        """Optimizer steps between two rows of values."""
        return 50 if self.given["log_every_n_steps"] is None else int(self.given["log_every_n_steps"])

    @property
    def num_sanity_val_steps(self) -> int:
        """Validation batches before training."""
        return 2 if self.given["num_sanity_val_steps"] is None else int(self.given["num_sanity_val_steps"])

    @property
    def training(self) -> bool:
        """Whether training steps run."""
        return self.ours.stage == "fit" and not self.validating

    @property
    def validating(self) -> bool:
        """Whether a validation runs."""
        return self.session is not None and self.session.stage_name == "validation"

    @property
    def testing(self) -> bool:
        """Whether a test runs."""
        return bool(self.ours.stage == "test")

    @property
    def predicting(self) -> bool:
        """Whether a prediction runs."""
        return bool(self.ours.stage == "predict")

    @property
    def evaluating(self) -> bool:
        """Whether a validation or a test runs."""
        return self.validating or self.testing

    @property
    def sanity_checking(self) -> bool:
        """Whether the sanity check runs."""
        return self.session is not None and self.session.sanity_checking

    @property
    def interrupted(self) -> bool:
        """Whether an error or a signal ended the run."""
        return bool(self.ours.interrupted) or (self.session is not None and self.session.has_failed)

    @property
    def state(self) -> TrainerState:
        """What the trainer does, and how far it is."""
        if self._called is None:
            return TrainerState()
        if self.ours.stage:
            fits = self._called is TrainerFn.FITTING
            stage = RunningStage.TRAINING if fits else RunningStage(self._called.value)
            stage = RunningStage.VALIDATING if self.validating else stage
            stage = RunningStage.SANITY_CHECKING if self.sanity_checking else stage
            return TrainerState(TrainerStatus.RUNNING, self._called, stage)
        ended = TrainerStatus.INTERRUPTED if self.interrupted else TrainerStatus.FINISHED
        return TrainerState(ended, self._called)

    def set_limit(self, name: str, value: int | None) -> None:
        """Set a limit of the fit under way and of later ones: ``fit_loop.max_epochs = n`` and the like.

        Args:
            name: ``"max_epochs"``, ``"min_epochs"``, ``"max_steps"`` or ``"min_steps"``.
            value: As ``Trainer`` takes it.
        """
        self.given[name] = value
        if self.session is not None and self.ours.stage == "fit":
            self.session.take_limits()

    @property
    def fit_loop(self) -> FitLoop:
        """Limits and place of the fit."""
        return FitLoop(self)

    @property
    def should_stop(self) -> bool:
        """Set it to True to end the run after this step."""
        return bool(self._should_stop or self.ours._run.stop.asked)

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self._should_stop = bool(value)
        if value:
            self.ours.stop("trainer.should_stop = True")

    # -- what runs -----------------------------------------------------------------------------

    @property
    def lightning_module(self) -> Any:
        """The module that runs, or ran last."""
        return None if self.session is None else self.session.module

    @property
    def model(self) -> Any:
        """The same: nothing is wrapped around it."""
        return self.lightning_module

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers of the fit."""
        return list(self.ours.optimizers)

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """The schedulers of the fit, each with when it steps."""
        return [] if self.session is None else list(self.session.adapter.configs)

    @property
    def strategy(self) -> StrategyView:
        """Where the run computes."""
        return StrategyView(self)

    @property
    def accelerator(self) -> Accelerator:
        """The kind of device that the run computes on."""
        return accelerator_of(self.strategy.root_device)

    @property
    def precision(self) -> Any:
        """As it was given."""
        return "32-true" if self.given["precision"] is None else self.given["precision"]

    @property
    def train_dataloader(self) -> Any:
        """The training data of the fit."""
        fit = self.ours._fit
        data = None if fit is None else fit.feed.data
        return data.loaders if isinstance(data, CombinedLoader) else data

    @property
    def val_dataloaders(self) -> Any:
        """The validation data of the fit."""
        fit = self.ours._fit
        if fit is None or fit.validation is None:
            return None
        found = [feed.data for feed in fit.validation.feeds.values()]
        return found[0] if len(found) == 1 else found

    @property
    def enable_validation(self) -> bool:
        """Whether the fit validates."""
        return self.ours._fit is not None and self.ours._fit.validation is not None

    # -- values --------------------------------------------------------------------------------

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The latest values, by the names they were logged under."""
        return {} if self.session is None else self.session.values.callback()

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        """The latest values that went to loggers."""
        return {} if self.session is None else self.session.values.logged()

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """The latest values on the progress bar."""
        return {} if self.session is None else self.session.values.shown()

    def init_module(self, empty_init: bool | None = None) -> Any:
        """Lightning makes large modules under it.

        Raises:
            PacelineError: always.
        """
        raise PacelineError(
            "trainer.init_module() is not offered",
            code="not-offered",
            fix="build the model in configure_model of a TrainModule",
        )
