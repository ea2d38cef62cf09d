"""``BatchSizeFinder``: the search of ``Tuner.scale_batch_size`` as a part of a fit."""

from __future__ import annotations

from typing import Any

from ..... import PacelineError
from ...translation.hooks import overrides
from .callback import Callback

_MODES = ("power", "binsearch")


class BatchSizeFinder(Callback):
    """Searches for the largest batch size before a fit makes its loaders; they have it from the start.

    The module or the data module makes them by the size. Evaluations keep the size that they have.

    Args:
        mode: ``"power"`` doubles the size; ``"binsearch"`` searches between the last two then.
        steps_per_trial: Steps of each trial.
        init_val: The first size.
        max_trials: Trials at most.
        batch_arg_name: The attribute, or hyperparameter, of module or data module, which is set.
        margin: By which part ``"binsearch"`` makes the result smaller.
        max_val: The largest size.

    Attributes:
        optimal_batch_size: What the last search found; ``init_val`` before it.

    Raises:
        ValueError: for another mode.
    """

    SUPPORTED_MODES = _MODES
    tuner: Any  # the class, whose module imports this one and sets it

    def __init__(
        self,
        mode: str = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
        margin: float = 0.05,
        max_val: int = 8192,
    ) -> None:
        self._mode = mode.lower()
        if self._mode not in _MODES:
            raise ValueError(f"`mode` should be either of {_MODES}")
        self._steps_per_trial, self._init_val, self._max_trials = steps_per_trial, init_val, max_trials
        self._batch_arg_name, self._margin, self._max_val = batch_arg_name, margin, max_val
        self.optimal_batch_size: int | None = init_val

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Search, unless a subclass overrides ``on_fit_start``, where Lightning would."""
        if stage != "fit":
            trainer.print("BatchSizeFinder searches in a fit alone: this evaluation has the size as it is")
        elif not overrides(self, "on_fit_start", BatchSizeFinder, Callback):
            self.scale_batch_size(trainer, pl_module)

    def scale_batch_size(self, trainer: Any, pl_module: Any) -> None:
        """Search.

        Raises:
            PacelineError: where the loaders exist already.
        """
        if trainer.train_dataloader is not None or trainer.state.fn != "fit":
            raise PacelineError(
                "BatchSizeFinder sets the size before loaders are made, and they exist",
                code="search-not-possible",
                fix="leave on_fit_start and the hooks after it as they are; or override setup, and call "
                "scale_batch_size there",
            )
        if trainer.loaded.get("train_dataloader") is not None:
            raise PacelineError(
                "BatchSizeFinder needs loaders of the module or data module, and fit was given one",
                code="search-not-possible",
                fix="train_dataloader(self); or Tuner(trainer).scale_batch_size(module, loader)",
            )
        self.optimal_batch_size = self.tuner(trainer).scale_batch_size(
            pl_module,
            datamodule=trainer.datamodule,
            mode=self._mode,
            steps_per_trial=self._steps_per_trial,
            init_val=self._init_val,
            max_trials=self._max_trials,
            batch_arg_name=self._batch_arg_name,
            margin=self._margin,
            max_val=self._max_val,
        )
