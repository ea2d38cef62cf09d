"""``ModelSummary`` under Lightning's names."""

from __future__ import annotations

from typing import Any

from ..... import callbacks as ours
from .callback import Callback
from .overrides import explain_overrides


class ModelSummary(Callback):
    """A table of the module's direct parts.

    Args:
        max_depth: 0 prints none; deeper parts are not shown.
        **summarize_kwargs: Accepted.
    """

    def __init__(self, max_depth: int = 1, **summarize_kwargs: Any) -> None:
        self.max_depth = max_depth

    def ours(self, trainer: Any) -> list[Any]:
        explain_overrides(self, ModelSummary, trainer)
        return [ours.ModelSummary()] if self.max_depth else []


class RichModelSummary(ModelSummary):
    """The same."""
