"""Items in their order, as many together as a limit allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


def in_chunks(items: Iterable[_T], size: Callable[[_T], int], limit: int) -> Iterator[list[_T]]:
    """Lists of items that follow each other, each as long as its sizes sum to at most ``limit``.

    An item larger than ``limit`` is in a list by itself.

    Example:
        >>> list(in_chunks(["a", "bb", "ccccc", "d"], len, limit=3))
        [['a', 'bb'], ['ccccc'], ['d']]
    """
    chunk: list[_T] = []
    total = 0
    for item in items:
        more = size(item)
        if chunk and total + more > limit:
            yield chunk
            chunk, total = [], 0
        chunk.append(item)
        total += more
    if chunk:
        yield chunk
