"""``LearningRateFinder``: the search of ``Tuner.lr_find`` as a part of a fit."""

from __future__ import annotations

from typing import Any

from .callback import Callback

_MODES = ("linear", "exponential")


class LearningRateFinder(Callback):
    """Searches for a learning rate when a fit begins, and trains with it.

    A subclass may call ``lr_find`` at the start of any epoch, with an ``on_fit_start`` that does nothing.

    Args:
        min_lr: The rate of the first step.
        max_lr: That of the last.
        num_training_steps: Steps.
        mode: ``"exponential"`` or ``"linear"``.
        early_stop_threshold: End where the average loss is so many times the lowest; None does not.
        update_attr: Set the module's rate, and that of its optimizers, to the suggestion.
        attr_name: The attribute or hyperparameter; ``lr`` or ``learning_rate`` unless given.

    Attributes:
        optimal_lr: What the last search found; None before it.

    Raises:
        ValueError: for another mode.
    """

    SUPPORTED_MODES = _MODES
    tuner: Any  # the class, whose module imports this one and sets it

    def __init__(
        self,
        min_lr: float = 1e-8,
        max_lr: float = 1,
        num_training_steps: int = 100,
        mode: str = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = True,
        attr_name: str = "",
    ) -> None:
        self._mode = mode.lower()
        if self._mode not in _MODES:
            raise ValueError(f"`mode` should be either of {_MODES}")
        self._min_lr, self._max_lr = min_lr, max_lr
        self._num_training_steps, self._early_stop_threshold = num_training_steps, early_stop_threshold
        self._update_attr, self._attr_name = update_attr, attr_name
        self.optimal_lr: Any = None

    def lr_find(self, trainer: Any, pl_module: Any) -> None:
        """Search with the weights and the optimizer of now, which stay as they are but for the rate."""
        self.optimal_lr = self.tuner(trainer).lr_find(
            pl_module,
            trainer.train_dataloader,
            datamodule=trainer.datamodule,
            min_lr=self._min_lr,
            max_lr=self._max_lr,
            num_training=self._num_training_steps,
            mode=self._mode,
            early_stop_threshold=self._early_stop_threshold,
            update_attr=self._update_attr,
            attr_name=self._attr_name,
        )
        found = self.optimal_lr.suggestion() if self.optimal_lr and self._update_attr else None
        if found is not None:
            for optimizer in trainer.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = found

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.ckpt_path is None:  # a run that is resumed has its rate
            self.lr_find(trainer, pl_module)
