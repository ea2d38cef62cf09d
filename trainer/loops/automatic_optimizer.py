"""The optimizer that ``TrainModule.optimizer_step`` gets: its step is the run's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.optim import Optimizer

from ...errors import PacelineError
from .manual_optimizer import is_own_method


class AutomaticOptimizer:
    """An optimizer whose ``step(closure)`` updates as the run would: scaled, reduced, clipped, checked.

    Everything else is the optimizer's own: ``param_groups``, ``state`` ...

    Args:
        optimizer: The module's.
        gradients: Computes the gradients of the last micro-batch and returns its loss.
        finish: Makes them the step's; False where nothing is to be updated.
        update: Changes the weights; False where nothing changed.
        skip: Ends the step without an update.
        before_own_method: Called with the name of a method that torch's optimizers do not have, before it.

    Attributes:
        updated: Whether the weights changed.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        gradients: Callable[[], Any],
        finish: Callable[[], bool],
        update: Callable[[], bool],
        skip: Callable[[], None],
        before_own_method: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.optimizer, self._before_own_method = optimizer, before_own_method
        self._gradients, self._finish, self._update, self._skip = gradients, finish, update, skip
        self._called = self._ready = self.updated = False

    def closure(self) -> Any:
        """Compute the step's gradients; the loss of its last micro-batch.

        Raises:
            PacelineError: when it was called in this step already.
        """
        if self._called:
            raise PacelineError(
                "optimizer_step called its closure twice in one step",
                code="override-incomplete",
                fix="call it once: optimizer.step(closure)",
            )
        self._called = True
        loss = self._gradients()
        self._ready = self._finish()
        return loss

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Compute the gradients, where ``closure`` is given, and update.

        Args:
            closure: The one that ``optimizer_step`` got, or what calls it.
        """
        loss = None if closure is None else closure()
        if self._ready:
            self._ready = False
            self.updated = self._update()
        return loss

    def check(self, place: str) -> None:
        """``optimizer_step`` has returned: what it left undone is ended without an update.

        Raises:
            PacelineError: when the gradients were never computed.
        """
        if not self._called:
            raise PacelineError(
                "optimizer_step did not call its closure, which computes the gradients",
                code="override-incomplete",
                where=place,
                fix="optimizer.step(closure), or closure() without a step",
            )
        if self._ready:
            self._skip()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.optimizer, name)
        return partial(self._call, found) if self._ready and is_own_method(found) else found

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A method of the optimizer's class on the step's gradients: it is the update."""
        self._before_own_method(method.__name__)
        self.updated = True
        return method(*args, **kwargs)
