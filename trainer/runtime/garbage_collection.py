"""Keeps Python's garbage collector from scanning all that is imported while steps run."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ...common.lazy_names import uncollected_imports

_OF_PYTHON = 1000
"""More frozen objects than Python itself has when it starts (3.12: about 400): a program froze some."""
_SECONDS, _BYTES = 10.0, 1 << 30
"""Sooner after a full collection, with less memory in use (torch alone: 0.3 GB), a fit skips its own."""
_collected = time.monotonic()
_is_ours = False
"""What is frozen was frozen by the fit that runs, which ends that."""


@contextmanager
def older_objects_frozen() -> Iterator[None]:
    """Inside, a collection scans only what is made there; torch alone brings 300,000 objects more.

    Each rank would scan these at another time, 0.1 s long, and the others would wait for it.
    """
    global _is_ours
    _collect()
    before, _is_ours = _is_ours, gc.get_freeze_count() <= _OF_PYTHON
    if _is_ours:  # what we add to a program's could not be separated from it later
        gc.freeze()
    try:
        yield
    finally:
        if _is_ours:
            gc.unfreeze()
        _is_ours = before


def _collect() -> None:
    """What is garbage already holds memory, a run before too, and would be frozen; a scan takes 0.2 s."""
    global _collected
    if time.monotonic() - _collected < _SECONDS and _memory_in_use() < _BYTES:
        return
    gc.collect()
    _collected = time.monotonic()


def _memory_in_use() -> int:
    """Bytes of tensors on the accelerator, and of the host's memory without files that are mapped."""
    import psutil
    import torch

    host = psutil.Process().memory_info()
    try:
        device = torch.accelerator.memory_allocated() if torch.accelerator.is_available() else 0
    except RuntimeError:  # this accelerator does not say
        device = _BYTES
    return int(host.rss - getattr(host, "shared", 0) + device)


@contextmanager
def imports_frozen() -> Iterator[None]:
    """For what imports much in a fit: no collection inside, and what is made is frozen with the rest."""
    with uncollected_imports():
        yield
        if _is_ours:
            gc.freeze()
