"""Built-in callbacks and loggers by name: ``"ema"`` is ``EMA()``."""

from __future__ import annotations

import inspect
from typing import Any

from ... import callbacks
from ...callbacks import Callback, Hooks, Logger, TrainerView
from ...callbacks.defaults import LOGGERS
from ...errors import PacelineError
from ...plugins import folded, load

_ABSTRACT = (Callback, Hooks, Logger, TrainerView)
_BASES: dict[str, type] = {"callbacks": Callback, "loggers": Logger}
_SUFFIX = "Logger"


def built_in(argument: str) -> dict[str, type]:
    """The classes that ``callbacks`` or ``loggers`` of the Trainer may name.

    Example:
        >>> built_in("loggers")["csv"].__name__
        'CSVLogger'
    """
    base = _BASES[argument]
    found = {name: getattr(callbacks, name) for name in callbacks.__all__}
    classes = {name: one for name, one in found.items() if issubclass(one, base) and one not in _ABSTRACT}
    short = {
        name.removesuffix(_SUFFIX).lower(): one for name, one in classes.items() if name.endswith(_SUFFIX)
    }
    return classes | short | {name: one for name, one in LOGGERS.items() if issubclass(one, base)}


def make(argument: str, name: str) -> Any:
    """The callback or logger of this name, with default arguments: built in, or of an installed package.

    Args:
        argument: ``callbacks`` or ``loggers``.
        name: In any spelling, where it is built in: ``ema``, ``early-stopping``, ``EarlyStopping``.

    Raises:
        PacelineError: where there is none, and where it needs arguments.
    """
    known = built_in(argument)
    cls = next((one for spelled, one in known.items() if folded(spelled) == folded(name)), None)
    if cls is None:
        return load(argument, name, _BASES[argument], [one.__name__ for one in known.values()])
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]
    if needed:
        given = ", ".join(f"{name}=..." for name in needed)
        raise PacelineError(
            f"{argument}: {cls.__name__} needs {', '.join(needed)}",
            code="missing-argument",
            got=cls.__name__,
            fix=f"from paceline.callbacks import {cls.__name__}, and {argument}=[{cls.__name__}({given})]",
        )
    return cls()
