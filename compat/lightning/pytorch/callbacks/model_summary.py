"""``ModelSummary`` under Lightning's names."""

from __future__ import annotations

from typing import Any

from ..... import callbacks as ours
from ..utilities.model_summary import ModelSummary as Summary
from .callback import Callback


class _Nothing(ours.ModelSummary):
    """In the place of our table, where the user's is shown."""

    def on_setup(self, trainer: Any, stage: str) -> None: ...

    def on_fit_start(self, trainer: Any) -> None: ...


_Nothing.__name__ = "ModelSummary"


class ModelSummary(Callback):
    """A table of the module's direct parts; a subclass that has ``summarize`` shows what it likes.

    Args:
        max_depth: 0 prints none. A subclass gets parts down to this depth, -1: all; our table has the
            direct ones.
        **summarize_kwargs: For ``summarize`` of a subclass.
    """

    def __init__(self, max_depth: int = 1, **summarize_kwargs: Any) -> None:
        self._max_depth, self._summarize_kwargs = max_depth, summarize_kwargs

    @property
    def _is_own(self) -> bool:
        return any(
            getattr(type(self), name) is not getattr(ModelSummary, name)
            for name in ("summarize", "_summary")
        )

    def ours(self, trainer: Any) -> list[Any]:
        if not self._max_depth:
            return []
        return [_Nothing() if self._is_own else ours.ModelSummary()]

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Have a subclass show its table."""
        if not (self._max_depth and self._is_own):
            return
        found = self._summary(trainer, pl_module)
        if trainer.is_global_zero:
            counts = found.total_parameters, found.trainable_parameters, found.model_size
            data, modes = found._get_summary_data(), found.total_training_modes
            self.summarize(data, *counts, modes, total_flops=0, **self._summarize_kwargs)

    def _summary(self, trainer: Any, pl_module: Any) -> Summary:
        return Summary(pl_module, self._max_depth)

    @staticmethod
    def summarize(
        summary_data: list[tuple[str, list[str]]],
        total_parameters: int,
        trainable_parameters: int,
        model_size: float,
        total_training_modes: dict[str, int],
        total_flops: int,
        **summarize_kwargs: Any,
    ) -> None:
        """Print the columns, each a name and the cells of its rows; then the counts."""
        names = [name for name, _ in summary_data]
        for row in [names, *zip(*(cells for _, cells in summary_data), strict=True)]:
            print(" | ".join(row))
        print(f"{total_parameters:,} parameters, {trainable_parameters:,} trained, {model_size:,.1f} MB")


class RichModelSummary(ModelSummary):
    """The same."""
