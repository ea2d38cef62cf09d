"""Keeps Python's garbage collector from scanning all that is imported while steps run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def older_objects_frozen() -> Iterator[None]:
    """Inside, a collection scans only what is made there; torch alone brings 300,000 objects more.

    Each rank would scan these at another time, 0.1 s long, and the others would wait for it.
    """
    if gc.get_freeze_count():  # by somebody else: what we add could not be separated from theirs later
        yield
        return
    gc.collect()  # what is garbage already would be frozen too, with the memory it holds
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
