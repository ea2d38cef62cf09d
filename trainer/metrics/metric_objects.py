"""The torchmetrics objects of a module, which are found by what they have: torchmetrics is not imported.

All that is used of torchmetrics without a public name is ``_update_count`` in ``set_state``;
``tests/trainer/metrics/test_metric_objects.py`` fails by name where a version lacks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def metric_parts(module: nn.Module) -> dict[str, Any]:
    """The torchmetrics objects in a module, by path; a collection's members, not the collection."""
    return {path: part for path, part in module.named_modules() if _is_metric(part)}


def _is_metric(part: Any) -> bool:
    """A collection has a state too, but only of its members, and counts no updates."""
    return isinstance(getattr(part, "metric_state", None), Mapping) and hasattr(part, "update_count")


def update_count(metric: Any) -> int:
    """How often it was updated since its last reset; 0 for a collection."""
    return int(getattr(metric, "update_count", 0))


def set_state(metric: Any, state: Mapping[str, Tensor | list[Tensor]], count: int) -> None:
    """Restore what its ``metric_state`` and ``update_count`` were."""
    for name, value in state.items():
        setattr(metric, name, value)
    metric._update_count = count  # update_count has no setter; compute() warns while it is 0
