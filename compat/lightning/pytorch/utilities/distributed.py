"""What Lightning code imports about ranks."""

from __future__ import annotations

import torch.distributed
from torch.distributed import ReduceOp

from .rank_zero import rank_zero_only

__all__ = ["ReduceOp", "rank_zero_only"]


def _distributed_is_initialized() -> bool:
    """Whether there is a process group."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()
