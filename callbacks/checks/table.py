"""The checks of the files beside this one."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from .finding import Check

_FILES = (
    *("of_model", "of_layers", "of_modes", "of_losses", "of_targets"),
    *("of_data.splits", "of_data.order", "of_data.samples", "of_data.contents", "of_data.targets"),
    *("of_optimization.rates", "of_optimization.schedules", "of_optimization.updates"),
    *("of_measurement", "of_metrics"),
)

ON_REQUEST = frozenset(
    (
        "cannot-overfit",
        "frozen-norms-move",
        "frozen-output",
        "majority-class",
        "shuffled-targets",
        "sum-reduction",
        "zero-term",
    )
)
"""Names of findings that ``paceline check`` alone shows."""


@cache
def built_in_checks() -> tuple[Check, ...]:
    """Every check, in the order in which findings are shown."""
    files = [import_module(f"{__package__}.{name}") for name in _FILES]
    return tuple(one for file in files for one in vars(file).values() if isinstance(one, Check))
