"""The small module that strategies wrap, so that ``self`` in a step stays the user's own object."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import nn


class Dispatch(nn.Module):
    """Its forward runs a named step of the user's module, under the precision's context.

    Args:
        context: Makes what the step runs in; None where there is nothing to enter.

    Attributes:
        went_backward: For the strategy to set: whether it has gone backward since the last forward.
    """

    went_backward = False

    def __init__(
        self, module: nn.Module, context: Callable[[], AbstractContextManager[Any]] | None
    ) -> None:
        super().__init__()
        self.module = module
        self.context = context

    def forward(self, name: str, *args: Any) -> Any:
        self.went_backward = False
        if self.context is None:
            return getattr(self.module, name)(*args)
        with self.context():
            return getattr(self.module, name)(*args)
