"""What steps make new tensors in, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """New tensors inside have this dtype; None changes nothing."""
    if dtype is None:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
