"""Built-in callbacks and loggers by name: ``"ema"`` is ``EMA()``."""

from __future__ import annotations

import inspect
from typing import Any

from ... import callbacks
from ...callbacks import Callback, Hooks, Logger, TrainerView
from ...callbacks.defaults import LOGGERS
from ...errors import PacelineError

_ABSTRACT = (Callback, Hooks, Logger, TrainerView)
_BASES: dict[str, type] = {"callbacks": Callback, "loggers": Logger}
_SUFFIX = "Logger"


def base_of(argument: str) -> type:
    """What ``callbacks`` or ``loggers`` of the Trainer must be."""
    return _BASES[argument]


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


def folded(name: str) -> str:
    """A name as it is compared: ``early-stopping`` and ``EarlyStopping`` are one."""
    return name.lower().replace("-", "").replace("_", "")


def find(argument: str, name: str) -> type | None:
    """The built-in class of this name; None where there is none."""
    return next((one for known, one in built_in(argument).items() if folded(known) == folded(name)), None)


def make(argument: str, cls: type) -> Any:
    """An object with default arguments.

    Raises:
        PacelineError: where it needs some.
    """
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]
    if needed:
        given = ", ".join(f"{name}=..." for name in needed)
        raise PacelineError(
            f"{argument}: {cls.__name__} needs {', '.join(needed)}",
            got=cls.__name__,
            fix=f"from paceline.callbacks import {cls.__name__}, and {argument}=[{cls.__name__}({given})]",
        )
    return cls()
