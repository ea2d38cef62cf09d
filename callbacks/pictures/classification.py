"""The base of callbacks that look at a classifier's outputs in evaluations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor

from ...common.argument_checks import NAME, TEXT, Kind, check_arguments
from ...errors import PacelineError, nearest
from ..base import Callback
from ..batches.batch_part import PART_OF_BATCH, part_of

if TYPE_CHECKING:
    from ..trainer_view import TrainerView


def _classes() -> Any:
    from pydantic import Field

    return Annotated[int, Field(strict=True, ge=2, le=10_000)] | Annotated[list[str], Field(min_length=2)]


_CLASSES = Kind(_classes, "the number of classes, at least 2, or their names in a list")


class Classification(Callback):
    """Reads a submodule's logits with a forward hook, and the batch's classes beside them.

    Subclasses write ``start``, ``take`` and ``finish``. The step itself is not changed.

    Args:
        classes: How many, or their names.
        output: The dotted name of the submodule that returns logits of shape (samples, classes, ...).
        target: The classes of shape (samples, ...): a key or attribute of the batch, or a function of it.
        name: What is logged; it gets the phase in front.

    Raises:
        PacelineError: for arguments that are not right; in a run, where there is no such submodule or the
            shapes do not fit.
    """

    def __init__(
        self, classes: int | Sequence[str], output: str, target: Callable[[Any], Any] | str | int, name: str
    ) -> None:
        check_arguments(
            type(self).__name__,
            classes=(list(classes) if isinstance(classes, tuple) else classes, _CLASSES),
            output=(output, TEXT),
            target=(target, PART_OF_BATCH),
            name=(name, NAME),
        )
        self.names = [str(n) for n in range(classes)] if isinstance(classes, int) else list(classes)
        self.output, self.target, self.log_name = output, target, name
        self._logits: Tensor | None = None
        self._active = False
        self._hook: Any = None

    @abstractmethod
    def start(self) -> None:
        """An evaluation starts."""

    @abstractmethod
    def take(self, trainer: TrainerView, batch: Any, predicted: Tensor, target: Tensor) -> None:
        """This rank's batch.

        Args:
            trainer: The trainer.
            batch: What the step got.
            predicted: Classes, on the device.
            target: Classes of the same shape.
        """

    @abstractmethod
    def finish(self, trainer: TrainerView) -> None:
        """The evaluation ends. On all ranks."""

    def on_fit_start(self, trainer: TrainerView) -> None:
        self._watch(trainer)

    def _watch(self, trainer: TrainerView) -> None:
        """Add the hook, before anything is compiled that would not see it."""
        if self._hook is None:
            modules = dict(trainer.module.named_modules())
            if self.output not in modules:
                raise PacelineError(
                    f"{type(self).__name__}: the module has no submodule {self.output!r}",
                    code="part-not-found",
                    allowed=", ".join(name for name in modules if name)[:300],
                    meant=nearest(self.output, list(modules)),
                )
            self._hook = modules[self.output].register_forward_hook(self._keep)

    def _keep(self, module: Any, arguments: Any, output: Any) -> None:
        if self._active:
            self._logits = output

    def on_validation_start(self, trainer: TrainerView) -> None:
        self._watch(trainer)
        self._active = True
        self.start()

    def on_validation_step_end(self, trainer: TrainerView, output: Any, batch: Any, batch_idx: int) -> None:
        logits, self._logits = self._logits, None
        target = part_of(batch, self.target)
        who = type(self).__name__
        if not isinstance(logits, Tensor) or not isinstance(target, Tensor):
            got = f"{self.output}: {type(logits).__name__}, target: {type(target).__name__}"
            raise PacelineError(
                f"{who} needs a tensor of logits and one of classes", code="wrong-shape", got=got
            )
        fits = logits.ndim > 1 and logits.shape[1] == len(self.names)
        if not fits or logits.shape[:1] + logits.shape[2:] != target.shape or target.is_floating_point():
            raise PacelineError(
                f"{who}: the logits and the classes do not fit",
                code="wrong-shape",
                got=f"logits {tuple(logits.shape)}, target {tuple(target.shape)} of {target.dtype}",
                allowed=f"logits (samples, {len(self.names)}, ...) and integers (samples, ...)",
            )
        self.take(trainer, batch, torch.argmax(logits, 1), target)

    def on_validation_end(self, trainer: TrainerView) -> None:
        self._active = False
        self.finish(trainer)

    def on_test_start(self, trainer: TrainerView) -> None:
        self.on_validation_start(trainer)

    def on_test_step_end(self, trainer: TrainerView, output: Any, batch: Any, batch_idx: int) -> None:
        self.on_validation_step_end(trainer, output, batch, batch_idx)

    def on_test_end(self, trainer: TrainerView) -> None:
        self.on_validation_end(trainer)

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        self._active, self._logits = False, None
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
