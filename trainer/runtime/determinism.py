"""What torch offers for ``deterministic=True``, switched on for a run and restored after it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def deterministic(enabled: bool) -> Iterator[None]:
    """Deterministic algorithms inside; an operation that has none raises an error that names it."""
    if not enabled:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA's libraries start
    cudnn = torch.backends.cudnn
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        cudnn.benchmark,
    )
    torch.use_deterministic_algorithms(True)
    cudnn.benchmark = False  # it chooses an algorithm by its time, which is another in each run
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        cudnn.benchmark = before[2]
