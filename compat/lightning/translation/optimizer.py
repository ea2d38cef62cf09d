"""The optimizer that Lightning hands to users: ``self.optimizers()`` and ``optimizer_step``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class LightningOptimizer:
    """An optimizer whose ``step`` is the run's; all else is the optimizer's own.

    Args:
        optimizer: The run's, which reduces, unscales and clips.
        on_step: Called after each of its steps.
        toggle: Calls ``toggle_optimizer`` and ``untoggle_optimizer``; for ``toggle_model``.
    """

    def __init__(
        self,
        optimizer: Any,
        on_step: Callable[[], None] = lambda: None,
        toggle: tuple[Callable[[Any], None], Callable[[Any], None]] | None = None,
    ) -> None:
        self._inner, self._toggle = optimizer, toggle
        self.was_cleared = False
        # Programs replace these, by Lightning's private names, to count the steps of one optimizer alone.
        self._on_before_step: Callable[[], None] = lambda: None
        self._on_after_step = on_step

    @property
    def optimizer(self) -> Any:
        """Torch's own."""
        return getattr(self._inner, "optimizer", self._inner)

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Update the weights; ``closure`` computes the gradients first."""
        self._on_before_step()
        if closure is not None and self._toggle is not None and not _evaluates(self.optimizer):
            found = closure()
            self._inner.step(**options)
        else:
            found = self._inner.step(closure, **options)
        self._on_after_step()
        return found

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clear the gradients."""
        self.was_cleared = True
        self._inner.zero_grad(*args, **kwargs)

    @contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Iterator[None]:
        """Inside, only this optimizer's parameters get gradients."""
        if self._toggle is None:
            yield
            return
        self._toggle[0](self)
        try:
            yield
        finally:
            self._toggle[1](self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _evaluates(optimizer: Any) -> bool:
    """Whether an optimizer computes the loss itself, and so more than once in a step."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty
