"""FLOPs of attention from the shapes of its tensors, as torch's counter has them for accelerators.

A causal mask halves nothing there, and so it does not here.
"""

from __future__ import annotations

from typing import Any

Shape = tuple[int, ...]


def forward(query: Shape, key: Shape, value: Shape, *more: Any, **options: Any) -> int:
    """The two products of attention; shapes are (batch, heads, length, width)."""
    batch, heads, length, width = query
    return 2 * batch * heads * length * key[-2] * (width + value[-1])


def backward(gradient: Shape, query: Shape, key: Shape, value: Shape, *more: Any, **options: Any) -> int:
    """The scores again, then the gradients of query, key, value and of the scores."""
    batch, heads, length, width = query
    return 2 * batch * heads * length * key[-2] * (3 * width + 2 * value[-1])
