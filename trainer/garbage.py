"""Keeps Python's garbage collector from looking through all that is imported while steps run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_LATEST_BUT_OLDEST = 1


@contextmanager
def older_objects_left_alone(thoroughly: bool = False) -> Iterator[None]:
    """Inside, a collection looks at what is made there; torch alone brings 300 000 objects more.

    Each rank would look through these at another time, 0.1 s long, and the others wait for it.

    Args:
        thoroughly: Collect what is garbage already, that 0.1 s too: it lies untouched otherwise until the
            end, with the memory that an earlier run may have left in it.
    """
    if gc.get_freeze_count():  # by somebody else: what we add could not be told from theirs later
        yield
        return
    gc.collect() if thoroughly else gc.collect(_LATEST_BUT_OLDEST)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
