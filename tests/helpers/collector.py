"""Python's garbage collector in the processes of the tests: it leaves alone all that is imported."""

from __future__ import annotations

import gc

count_frozen = gc.get_freeze_count


def freeze_imports() -> None:
    """Else each fit, which begins with a collection, scans 500,000 objects.

    A fit freezes nothing where much is frozen. To count how much there is takes 50 ms in a forked
    process, and is asked by each fit: the answer is kept.
    """
    gc.collect()
    gc.freeze()
    number = count_frozen()
    gc.get_freeze_count = lambda: number
