"""Where a run computes: strategies, precision plugins and the process' place among others."""

from __future__ import annotations

from ..errors import PacelineError, nearest
from .base import Strategy
from .environment import Environment, find_device
from .precision import (
    PRECISIONS,
    AutocastBF16,
    AutocastFP16,
    Full,
    Precision,
    make_precision,
)
from .single import Single

__all__ = [
    "PRECISIONS",
    "STRATEGIES",
    "AutocastBF16",
    "AutocastFP16",
    "Environment",
    "Full",
    "Precision",
    "Single",
    "Strategy",
    "find_device",
    "make_precision",
    "make_strategy",
]

STRATEGIES = ("auto", "single")
_PLANNED = ("ddp", "fsdp", "hsdp", "deepspeed")


def make_strategy(strategy: str | Strategy) -> Strategy:
    """The strategy of that name; an object of ``Strategy`` is taken as it is.

    Raises:
        PacelineError: for a name that is none.
    """
    if isinstance(strategy, Strategy):
        return strategy
    if strategy in STRATEGIES:
        return Single()
    meant = nearest(strategy, [*STRATEGIES, *_PLANNED])
    named = next((p for p in _PLANNED if strategy.startswith(p)), None)
    planned = named or (meant if meant in _PLANNED else None)
    raise PacelineError(
        f"strategy: there is no {strategy!r}" + (" in this version" if planned else ""),
        got=strategy,
        allowed=", ".join(STRATEGIES) + ", or an object of paceline.strategies.Strategy",
        meant=None if named else meant,
        fix=f"{planned} is planned; until then strategy='single' trains on one device" if planned else None,
    )
