"""A callback made of functions, for what is too small to be a class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..common.argument_checks import NAME_OR_NONE, check_arguments
from ..errors import report, shown
from .base import Callback
from .hooks import HOOKS, meant_hook


class LambdaCallback(Callback):
    """Calls the functions that it is given, each in its hook. The other hooks cost nothing.

    Args:
        name: Its key in a checkpoint, where there are two of this class.
        **hooks: A function by the name of its hook (``docs/extending/loop.md`` has all of them). It gets
            the hook's arguments, the trainer first; trailing ones may be omitted.

    Raises:
        PacelineError: for names that are no hooks, and values that cannot be called.

    Example:
        >>> printed = LambdaCallback(on_fit_end=lambda trainer: print("steps:", trainer.global_step))
        >>> trainer = Trainer(max_epochs=1, callbacks=printed, progress=False, run_dir=None)
        >>> run = trainer.fit(Net(), train_loader)
        steps: 4
    """

    def __init__(self, *, name: str | None = None, **hooks: Callable[..., Any]) -> None:
        check_arguments("LambdaCallback", name=(name, NAME_OR_NONE))
        problems = [_problem(hook, function) for hook, function in hooks.items()]
        if any(problems):
            raise report(
                "LambdaCallback", [problem for problem in problems if problem], code="invalid-arguments"
            )
        self.name = name
        for hook, function in hooks.items():
            setattr(self, hook, function)  # the table of hooks takes what an object has itself, too


def _problem(name: str, function: Any) -> str:
    if name not in HOOKS:
        meant = meant_hook(name)
        return f"{name}: no hook of a run" + (f"; did you mean {meant}?" if meant else "")
    return "" if callable(function) else f"{name}: got {shown(function)}; allowed: a function"
