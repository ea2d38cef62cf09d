"""``isolate_rng``: random numbers inside leave no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .....trainer.rng import untouched


@contextmanager
def isolate_rng(include_cuda: bool = True) -> Iterator[None]:
    """Restore the generators of torch, numpy and Python afterwards.

    Args:
        include_cuda: That of the current CUDA device too.
    """
    has_cuda = include_cuda and torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if has_cuda else torch.device("cpu")
    with untouched(device):
        yield
