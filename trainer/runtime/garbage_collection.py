"""Keeps Python's garbage collector from looking through all that is imported while steps run."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

_LATEST_BUT_OLDEST = 1
_SECONDS = 10.0  # from one full collection to the next: with torch loaded, one takes 0.15 s
_collected = time.monotonic()


@contextmanager
def older_objects_left_alone(thoroughly: bool = False) -> Iterator[None]:
    """Inside, a collection looks at what is made there; torch alone brings 300 000 objects more.

    Each rank would look through these at another time, 0.1 s long, and the others wait for it. What is
    garbage already would lie untouched until the end, with the memory that an earlier run may have left in
    it: it is collected before, where runs follow each other fast not before each.

    Args:
        thoroughly: Before each all the same: what an earlier run left may hold an accelerator's memory.
    """
    if gc.get_freeze_count():  # by somebody else: what we add could not be told from theirs later
        yield
        return
    _collect(thoroughly)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _collect(thoroughly: bool) -> None:
    global _collected
    if not thoroughly and time.monotonic() - _collected < _SECONDS:
        gc.collect(_LATEST_BUT_OLDEST)
        return
    gc.collect()
    _collected = time.monotonic()
