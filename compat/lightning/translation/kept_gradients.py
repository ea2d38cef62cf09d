"""The gradients of a step, shown to hooks until the next one."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class KeptGradients:
    """Our loop drops gradients after an update; Lightning's hooks may read them until they are cleared."""

    def __init__(self) -> None:
        self._held: list[tuple[Tensor, Tensor]] = []

    def watch(self, optimizer: Any) -> None:
        """Keep those that each step of this optimizer used."""
        optimizer.register_step_post_hook(self._hold)

    def _hold(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._held = [(p, p.grad) for p in parameters if p.grad is not None]

    def show(self) -> None:
        """The parameters have them again."""
        for parameter, gradient in self._held:
            parameter.grad = gradient

    def clear(self) -> None:
        """They are gone: the next backward begins without any."""
        for parameter, _ in self._held:
            parameter.grad = None
        self._held.clear()
