"""Functions that take a ``Trainer``: searches and estimates before a run, its steps again after it.

Before: ``find_learning_rate``, ``find_batch_size``, ``estimate``. After: ``replay``. At any time:
``check_invariance``, whether the numbers depend on the layout.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["check_invariance", "estimate", "find_batch_size", "find_learning_rate", "replay"]

if TYPE_CHECKING:
    from .debug.invariance import check_invariance
    from .debug.replay import replay
    from .run_estimate import estimate
    from .tuning.batch_size_search import find_batch_size
    from .tuning.learning_rate_search import find_learning_rate

_HOMES = {
    "check_invariance": ".debug.invariance",
    "estimate": ".run_estimate",  # torch's tracing, which takes a second to load
    "find_batch_size": ".tuning.batch_size_search",
    "find_learning_rate": ".tuning.learning_rate_search",
    "replay": ".debug.replay",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
