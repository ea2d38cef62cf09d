"""A part of a batch, by its key, its attribute or a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...common.argument_checks import Kind


def _part() -> Any:
    from pydantic import StrictInt

    return Callable[[Any], Any] | str | StrictInt


PART_OF_BATCH = Kind(_part, "a function of a batch, or a key or attribute of it")
PART_OF_BATCH_OR_NONE = Kind(lambda: _part() | None, f"{PART_OF_BATCH.allowed}, or None")


def part_of(batch: Any, which: Callable[[Any], Any] | str | int) -> Any:
    """What a function of the batch returns, or what lies in it under a key or as an attribute.

    Example:
        >>> part_of({"image": 1, "label": 2}, "label"), part_of((1, 2), 0), part_of((1, 2), sum)
        (2, 1, 3)
    """
    if callable(which):
        return which(batch)
    by_name = isinstance(which, str) and not isinstance(batch, Mapping)
    return getattr(batch, str(which)) if by_name else batch[which]
