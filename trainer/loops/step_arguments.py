"""The arguments that a user's step is called with, compared with those that it asks for."""

from __future__ import annotations

from typing import Any

from ...errors import PacelineError
from ..utils.functions import required_arguments


def check_arguments_of_step(module: Any, name: str, given: tuple[str, ...]) -> None:
    """Refuse a step that asks for more than it is called with.

    Raises:
        PacelineError: naming the arguments.
    """
    wanted = required_arguments(getattr(module, name))
    if len(wanted) <= len(given):
        return
    fix = f"def {name}(self, {', '.join(given)})"
    if "optimizer_idx" in wanted:
        fix = (
            "several optimizers need manual optimization: set self.automatic_optimization = False, take "
            "them from self.optimizers(), and call self.manual_backward(loss) and optimizer.step()"
        )
    raise PacelineError(
        f"{type(module).__name__}.{name} asks for more arguments than it is called with",
        got=", ".join(wanted),
        allowed=", ".join(given),
        fix=fix,
    )
