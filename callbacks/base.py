"""The base of everything that watches a run."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ..common.argument_checks import check_names
from .hooks import Hooks

if TYPE_CHECKING:
    from torch import Tensor

    from ..durations import StepPosition
    from .trainer_view import TrainerView


class Callback(Hooks):
    """Override the hooks you need. A callback watches a run; it does not rewrite its step.

    State that must survive a resume goes through ``state_dict`` and ``load_state_dict``, as plain data
    (numbers, strings, lists, dicts, tensors). It is kept under ``state_key``: the class name, or the
    ``name`` attribute where two callbacks of one class are given.

    Example:
        >>> class CountSteps(Callback):
        ...     steps = 0
        ...     def on_step_end(self, trainer, outputs):
        ...         self.steps += 1
        >>> trainer = Trainer(max_epochs=1, callbacks=CountSteps(), progress=False, run_dir=None)
        >>> run = trainer.fit(Net(), train_loader)
    """

    name: str | None = None
    requests_validation: bool = False
    """Whether it calls ``trainer.loop.request_validation()``: what is monitored may wait for that alone."""

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Refuse wrong keywords of a built-in callback, all in one report."""
        check_names(cls, options, args)
        return super().__new__(cls)

    @property
    def state_key(self) -> str:
        """The key of this callback's state in a checkpoint."""
        return self.name or type(self).__name__

    def next_due(self, at: StepPosition) -> float:
        """The next step after which ``on_step_end`` or ``on_step_boundary`` has anything to do.

        A class that overrides it beside these hooks has them called after that step, and after the first
        step of a fit and the last one of each epoch; ``on_step_boundary`` after each validation of the fit
        too. It is asked after steps with which anything is due; until then its answer holds. Ranks call the
        hooks after the same steps where the answer follows from ``at`` alone. All other classes have both
        hooks called after every step.

        Args:
            at: Where the run is.

        Returns:
            The step; infinite: not before one of those; 0: after every step until it is asked again, as
            what goes by time.

        Example:
            >>> class EverySecond(Callback):
            ...     def next_due(self, at):
            ...         return at.global_step // 2 * 2 + 2
            ...     def on_step_boundary(self, trainer):
            ...         if trainer.global_step % 2 == 0:
            ...             print(trainer.global_step)
            >>> run = Trainer(max_steps=4, callbacks=EverySecond(), loggers=False).fit(Net(), train_loader)
            2
            4
        """
        return at.global_step + 1

    def evaluation(self, trainer: TrainerView) -> AbstractContextManager[None]:
        """What surrounds a validation, test or prediction: one with averaged weights, say. On all ranks."""
        return nullcontext()

    @property
    def has_evaluation_weights(self) -> bool:
        """Whether the validations of a fit use ``parameter_state`` in the parameters' place."""
        return False

    def parameter_state(self) -> dict[str, Tensor]:
        """Tensors by parameter name that a checkpoint keeps, in any dtype.

        Each has the shape of ``trainer.strategy.weights.parameter_parts(module)[name]``.
        """
        return {}

    def load_parameter_state(self, state: dict[str, Tensor]) -> None:
        """Take back what ``parameter_state`` gave, maybe under another strategy."""

    def state_dict(self) -> dict[str, Any]:
        """Plain data that ``load_state_dict`` can read; empty: nothing is kept."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""
