"""Python's garbage collector in the processes of the tests: it leaves alone all that is imported."""

from __future__ import annotations

import gc
import sys
from importlib import import_module

OF_EVERY_FIT = (
    "torch._dynamo",  # of each optimizer
    "torch.distributed.checkpoint.state_dict",
    "torch.utils.tensorboard",
    "paceline.trainer.config.validation",
    "paceline.trainer.loops.setup.fit_setup",
)
count_frozen = gc.get_freeze_count
_seen: tuple[int, object] = (0, None)


def freeze_imports() -> None:
    """Else each fit, which begins with a collection, scans 500,000 objects.

    What fits import is imported before. A fit freezes nothing where much is frozen. To count how much
    there is takes 50 ms in a forked process, and is asked by each fit: the answer is kept.
    """
    for name in OF_EVERY_FIT:
        import_module(name)
    gc.freeze()  # what is garbage by now stays: to look for it would take a second of each worker
    number = count_frozen()
    gc.get_freeze_count = lambda: number


def freeze_more(file: object) -> None:
    """Before each test: what tests before imported, and what the files before this one keep.

    mlflow alone brings 200,000 objects, which each fit would scan from then on.
    """
    global _seen
    now = len(sys.modules), file
    if now != _seen:
        _seen = now
        gc.collect()
        gc.freeze()
