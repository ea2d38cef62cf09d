"""Keeps Python's garbage collector from scanning all that is imported while steps run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_OF_PYTHON = 1000
"""More frozen objects than Python itself has when it starts (3.12: about 400): a program froze some."""


@contextmanager
def older_objects_frozen() -> Iterator[Callable[[], None]]:
    """Inside, a collection scans only what is made there; torch alone brings 300,000 objects more.

    Each rank would scan these at another time, 0.1 s long, and the others would wait for it. What is given
    freezes all that was made meanwhile too; torch imports its compiler with a process's first optimizer.
    """
    gc.collect()  # what is garbage already holds memory, a run before too, and would be frozen
    if gc.get_freeze_count() > _OF_PYTHON:  # what we add could not be separated from it later
        yield lambda: None
        return

    def freeze() -> None:
        gc.collect()
        gc.freeze()

    gc.freeze()
    try:
        yield freeze
    finally:
        gc.unfreeze()
