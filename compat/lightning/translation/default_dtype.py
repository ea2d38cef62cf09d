"""What steps make new tensors and cast weights in, for a while."""

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


@contextmanager
def uncached_casts() -> Iterator[None]:
    """Autocast casts a weight in each of its uses: their gradients add up in the weight's own dtype."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
