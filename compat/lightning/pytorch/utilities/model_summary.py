"""``ModelSummary``: the parameters of a module, in numbers and as a table."""

from __future__ import annotations

from typing import Any

from .....callbacks.summary import parameter_table


class ModelSummary:
    """Counts a module's parameters.

    Args:
        model: The module.
        max_depth: Accepted: the direct parts are listed.
    """

    def __init__(self, model: Any, max_depth: int = 1) -> None:
        self._model = model

    @property
    def total_parameters(self) -> int:
        """All parameters."""
        return sum(p.numel() for p in self._model.parameters())

    @property
    def trainable_parameters(self) -> int:
        """Those that are trained."""
        return sum(p.numel() for p in self._model.parameters() if p.requires_grad)

    @property
    def model_size(self) -> float:
        """Megabytes of all parameters."""
        return float(sum(p.numel() * p.element_size() for p in self._model.parameters())) / 1e6

    def __str__(self) -> str:
        return parameter_table(self._model)


def get_human_readable_count(number: int) -> str:
    """A number in at most three digits and a letter.

    Example:
        >>> get_human_readable_count(123), get_human_readable_count(2_500_000)
        ('123  ', '2.5 M')
    """
    letter = min(max(len(str(number)) - 1, 0) // 3, 4)
    value = number / 1000**letter
    text = f"{value:,.1f}" if letter and value < 100 else f"{int(value):,d}"
    return f"{text} {' KMBT'[letter]}"


def summarize(lightning_module: Any, max_depth: int = 1) -> ModelSummary:
    """The summary of a module."""
    return ModelSummary(lightning_module, max_depth)
