"""Functions that do something on rank 0 only."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any


class PossibleUserWarning(UserWarning):
    """What Lightning warns of with: programs filter it."""


class LightningDeprecationWarning(DeprecationWarning):
    """Lightning's warnings of what it will take away."""


class WarningCache(set[str]):
    """Warns once of each text."""

    def warn(self, message: str, stacklevel: int = 5, **kwargs: Any) -> None:
        """Warn on rank 0, where it was not done."""
        if message not in self:
            self.add(message)
            rank_zero_warn(message, stacklevel=stacklevel, **kwargs)

    def info(self, message: str, **kwargs: Any) -> None:
        """Log on rank 0, where it was not done."""
        if message not in self:
            self.add(message)
            rank_zero_info(message, **kwargs)


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


def rank_prefixed_message(message: str, rank: int | None) -> str:
    """A message with the rank before it.

    Example:
        >>> rank_prefixed_message("hello", 1)
        '[rank: 1] hello'
    """
    return message if rank is None else f"[rank: {rank}] {message}"


def disable_possible_user_warnings(module: str = "") -> None:
    """Silence what is warned of as ``PossibleUserWarning``.

    Args:
        module: Of this module alone; "" of all.
    """
    warnings.filterwarnings("ignore", module=module, category=PossibleUserWarning)


with suppress(ImportError):  # of Lightning and torchmetrics, whose functions ask for it
    from lightning_utilities.core.rank_zero import rank_zero_only as _of_others

    vars(_of_others).setdefault("rank", rank())
