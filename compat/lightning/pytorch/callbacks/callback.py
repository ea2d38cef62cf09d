"""``Callback``: what users subclass, with Lightning's hooks."""

from __future__ import annotations

from typing import Any

from .....errors import PacelineError, nearest
from ...translation.copies import state_without
from ...translation.hooks import CallbackHooks, names_of


class Callback(CallbackHooks):
    """Override the hooks you need; they get ``(trainer, pl_module, ...)``.

    Source: https://lightning.ai/docs/pytorch/stable/extensions/callbacks.html

    Example:
        >>> import paceline.compat.lightning as L
        >>> class Printed(L.Callback):
        ...     def on_train_epoch_end(self, trainer, pl_module):
        ...         print("epoch", trainer.current_epoch)
    """

    _paceline_session: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold: not the trainer."""
        return state_without(self, "_paceline_session")

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        """Log a value, as the module's ``log``."""
        if self._paceline_session is not None:
            self._paceline_session.module.log(name, value, *args, **options)

    def log_dict(self, dictionary: Any, *args: Any, **options: Any) -> None:
        """``log`` each item."""
        if self._paceline_session is not None:
            self._paceline_session.module.log_dict(dictionary, *args, **options)

    def ours(self, trainer: Any) -> list[Any]:
        """The callbacks of ``paceline`` that do this one's work; none for a user's own."""
        return []

    def resumed(self, pl_module: Any, optimizers: list[Any], epochs: int) -> None:
        """Bring new optimizers to where they are after so many epochs; called before each fit."""

    def _generate_state_key(self, **what: Any) -> str:
        """For ``state_key``, where two of a class differ by ``what``; the name is Lightning's."""
        return f"{type(self).__qualname__}{what!r}"

    @property
    def state_key(self) -> str:
        """The key of this callback's state in a checkpoint."""
        return type(self).__qualname__

    def state_dict(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""


class LambdaCallback(Callback):
    """Hooks as functions.

    Args:
        **hooks: By name; each gets what the hook gets: ``on_train_end=lambda trainer, pl_module: ...``.

    Raises:
        PacelineError: for a name that is no hook.
    """

    def __init__(self, **hooks: Any) -> None:
        for name, function in hooks.items():
            if name not in names_of(CallbackHooks):
                raise PacelineError(
                    f"LambdaCallback: {name!r} is no hook",
                    code="hook-mismatch",
                    meant=nearest(name, names_of(CallbackHooks)),
                )
            if function is not None:
                setattr(self, name, function)
