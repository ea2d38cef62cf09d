"""The base of averages of weights: where they are kept, and when they take the weights' place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..base import Callback

if TYPE_CHECKING:
    from ..trainer_view import TrainerView


class WeightAverage(Callback):
    """Keeps an average of the parameters, each rank that of its part.

    A subclass calls ``add`` when the weights of a step are to go into the average. Buffers, such as running
    statistics, are not averaged. Checkpoints have the trained weights and the average; what is loaded from
    one by ``validate``, ``test``, ``predict``, ``export`` or ``load_from_checkpoint`` are the weights that
    validation used. After a fit that no error has ended, the module has the average.

    Args:
        validate: Use the average in the validations of a fit, and so in ``Checkpoint(monitor=...)``.
        name: The key of its state, where two of one class are given.

    Attributes:
        averaged: How often weights went into the average.

    Example:
        >>> class Mean(WeightAverage):
        ...     def on_train_epoch_end(self, trainer):
        ...         self.add()
        ...     def combine(self, values, weights):
        ...         for value, weight in zip(values, weights, strict=True):
        ...             value += (weight - value) / (self.averaged + 1)
        >>> mean = Mean(validate=False)
        >>> run = Trainer(max_epochs=2, callbacks=mean, loggers=False).fit(Net(), train_loader)
        >>> mean.averaged
        2
    """

    def __init__(self, validate: bool = True, name: str | None = None) -> None:
        self.validate, self.name = validate, name
        self.averaged = 0
        self._failed = False
        self._parts: dict[str, Tensor] = {}
        self._values: dict[str, Tensor] = {}

    def combine(self, values: list[Tensor], weights: list[Tensor]) -> None:
        """Bring the current weights into the average, in place.

        Args:
            values: The average of each parameter, in fp32 (fp64 for a parameter of fp64).
            weights: The parameters, in the same dtypes.
        """
        raise NotImplementedError

    def add(self) -> None:
        """The weights as they are go into the average; the first ones are the average."""
        values, weights = self._ordered(), [*self._parts.values()]
        with torch.no_grad():
            if self.averaged:
                pairs = zip(weights, values, strict=True)
                self.combine(values, [weight.to(value.dtype) for weight, value in pairs])
            else:
                _copy(weights, values)
        self.averaged += 1

    def _ordered(self) -> list[Tensor]:
        """The average, in the order of the parameters."""
        return [self._values[name] for name in self._parts]

    def on_setup(self, trainer: TrainerView, stage: str) -> None:
        if stage == "fit":  # a resumed run gets its state back after this
            self.averaged, self._failed, self._values = 0, False, {}

    def on_fit_start(self, trainer: TrainerView) -> None:
        self._parts = trainer.strategy.weights.parameter_parts(trainer.module)
        if set(self._values) != set(self._parts):  # no checkpoint, or one without them: it begins here
            self._values = {name: _wide_copy(part) for name, part in self._parts.items()}
            self.averaged = 0

    @contextmanager
    def evaluation(self, trainer: TrainerView) -> Iterator[None]:
        """Inside, the module of a fit has the average in place of the trained weights, where asked."""
        if not (self.has_evaluation_weights and trainer.stage == "fit"):
            yield
            return
        trained = [part.clone() for part in self._parts.values()]
        self._write(trainer, self._ordered())
        try:
            yield
        finally:
            self._write(trainer, trained)

    def _write(self, trainer: TrainerView, weights: list[Tensor], for_training: bool = False) -> None:
        _copy(weights, [*self._parts.values()])
        trainer.strategy.weights.parts_written(trainer.module, for_training)

    def on_exception(self, trainer: TrainerView, error: BaseException) -> None:
        self._failed = True

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        if stage != "fit":
            return
        if self.averaged and self._values and not self._failed:
            if not self._parts:  # there was nothing left to do after the run was restored
                self._parts = trainer.strategy.weights.parameter_parts(trainer.module)
            self._write(trainer, self._ordered())
            self.finish(trainer)
        self._parts, self._values = {}, {}

    def finish(self, trainer: TrainerView) -> None:
        """The fit is over and the module has the average. On all ranks."""

    def state_dict(self) -> dict[str, Any]:
        return {"averaged": self.averaged}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.averaged = int(state["averaged"])

    def parameter_state(self) -> dict[str, Tensor]:
        return self._values

    def load_parameter_state(self, state: dict[str, Tensor]) -> None:
        self._values = state

    @property
    def has_evaluation_weights(self) -> bool:
        return self.validate and self.averaged > 0


def _wide_copy(part: Tensor) -> Tensor:
    """In fp32 at least: a small share of a 16-bit weight would be rounded away."""
    return part.to(torch.promote_types(part.dtype, torch.float32), copy=True)


@torch.no_grad()
def _copy(sources: list[Tensor], targets: list[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)
