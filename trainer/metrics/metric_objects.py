"""The torchmetrics objects of a module, which are found by what they have: torchmetrics is not imported.

All that is used of torchmetrics without a public name is ``_update_count`` in ``set_state`` and
``_forward_cache`` in ``latest_value``; ``tests/trainer/metrics/test_metric_objects.py`` fails by name where
a version lacks one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
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


def latest_value(metric: Any) -> Any:
    """What its last call returned, the value of one batch; None where it was only updated."""
    return getattr(metric, "_forward_cache", None)


def set_state(metric: Any, state: Mapping[str, Tensor | list[Tensor]], count: int) -> None:
    """Restore what its ``metric_state`` and ``update_count`` were."""
    for name, value in state.items():
        setattr(metric, name, value)
    metric._update_count = count  # update_count has no setter; compute() warns while it is 0


class States:
    """What torchmetrics objects have counted, to be put back after a reset.

    Args:
        metric: An object that was logged, a collection too.
    """

    def __init__(self, metric: Any) -> None:
        parts = metric_parts(metric).values() if isinstance(metric, nn.Module) else ()
        # A reset empties lists in place, and makes new tensors.
        self._parts = [(part, _copied(part.metric_state), update_count(part)) for part in parts]

    def __bool__(self) -> bool:
        """False for an object that is none of torchmetrics: what it has counted is not known."""
        return bool(self._parts)

    @property
    def is_unused(self) -> bool:
        """Whether nothing was counted since the reset."""
        return not any(update_count(part) for part, _, _ in self._parts)

    def put_back(self) -> None:
        """Have the objects hold it again."""
        for part, state, count in self._parts:
            set_state(part, _copied(state), count)


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, list) else value for name, value in state.items()}


@contextmanager
def merged_over(group: Any, metric: Any) -> Iterator[None]:
    """Inside, ``compute`` merges the states of a process group's ranks; of all where it is None."""
    parts = (
        [] if group is None or not isinstance(metric, nn.Module) else list(metric_parts(metric).values())
    )
    before = [part.process_group for part in parts]
    for part in parts:
        part.process_group = group
    try:
        yield
    finally:
        for part, own in zip(parts, before, strict=True):
            part.process_group = own


@contextmanager
def reset_meanwhile(objects: Iterable[Any]) -> Iterator[None]:
    """They have counted nothing inside, and have what they had afterwards."""
    kept = [(metric, States(metric)) for metric in objects]
    for metric, _ in kept:
        metric.reset()
    try:
        yield
    finally:
        for _, states in kept:
            states.put_back()
