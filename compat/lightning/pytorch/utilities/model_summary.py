"""``ModelSummary``: the parameters of a module, in numbers and as a table."""

from __future__ import annotations

from typing import Any

from .....callbacks.summary import parameter_table


class ModelSummary:
    """Counts a module's parameters.

    Args:
        model: The module.
        max_depth: Of the parts that ``layer_names`` and the like have; 1: the direct ones, -1: all. As a
            string it is a table of the direct ones.
    """

    def __init__(self, model: Any, max_depth: int = 1) -> None:
        self._model, self._max_depth = model, max_depth

    @property
    def _layers(self) -> dict[str, Any]:
        parts = list(self._model.named_modules())[1:] if self._max_depth else []
        return {n: one for n, one in parts if self._max_depth < 0 or n.count(".") < self._max_depth}

    @property
    def layer_names(self) -> list[str]:
        """The parts' names."""
        return [*self._layers]

    @property
    def layer_types(self) -> list[str]:
        """Their classes' names."""
        return [type(one).__name__ for one in self._layers.values()]

    @property
    def param_nums(self) -> list[int]:
        """Their parameters."""
        return [sum(p.numel() for p in one.parameters()) for one in self._layers.values()]

    @property
    def total_training_modes(self) -> dict[str, int]:
        """How many of all parts are in train mode, and in eval mode."""
        modes = [one.training for one in self._model.modules()][1:]
        return {"train": modes.count(True), "eval": modes.count(False)}

    def _get_summary_data(self) -> list[tuple[str, list[str]]]:
        """The columns of Lightning's table; no operation is counted."""
        modes = ["train" if one.training else "eval" for one in self._layers.values()]
        count = len(modes)
        columns = [
            (" ", [str(one) for one in range(count)]),
            ("Name", self.layer_names),
            ("Type", self.layer_types),
            ("Params", [get_human_readable_count(one) for one in self.param_nums]),
            ("Mode", modes),
            ("FLOPs", [get_human_readable_count(0)] * count),
        ]
        others = self.total_parameters - sum(self.param_nums)
        if others > 0:
            rest = (" ", "other params", "n/a", get_human_readable_count(others), "n/a", "n/a")
            for (_, cells), cell in zip(columns, rest, strict=True):
                cells.append(cell)
        return columns

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
