"""Functions that do something on rank 0 only."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

_log = logging.getLogger("paceline.compat.lightning")


def rank() -> int:
    """The number of this process, before any process group exists."""
    return next((int(os.environ[n]) for n in ("RANK", "SLURM_PROCID", "LOCAL_RANK") if n in os.environ), 0)


def rank_zero_only(function: Callable[..., Any], default: Any = None) -> Callable[..., Any]:
    """A function that runs on rank 0, and returns ``default`` on others."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if rank() == 0 else default

    return wrapped


rank_zero_only.rank = rank()  # type: ignore[attr-defined]


def rank_zero_info(*args: Any, **kwargs: Any) -> None:
    """Log an information on rank 0."""
    if rank() == 0:
        _log.info(*args, **kwargs)


def rank_zero_debug(*args: Any, **kwargs: Any) -> None:
    """Log a detail on rank 0."""
    if rank() == 0:
        _log.debug(*args, **kwargs)


def rank_zero_warn(message: Any, stacklevel: int = 4, **kwargs: Any) -> None:
    """Warn on rank 0."""
    if rank() == 0:
        warnings.warn(str(message), stacklevel=stacklevel, **kwargs)


rank_zero_deprecation = rank_zero_warn
