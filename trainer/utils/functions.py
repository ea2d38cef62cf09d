"""What Python knows of a user's functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def source_of(function: Callable[..., Any]) -> str:
    """``, file:line`` of a function, where Python knows it."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f", {code.co_filename}:{code.co_firstlineno}" if code else ""


def required_arguments(function: Callable[..., Any]) -> list[str]:
    """The names of the positional arguments that a bound step cannot do without."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in _POSITIONAL and p.default is inspect.Parameter.empty]


def positional_arguments(function: Callable[..., Any]) -> int:
    """How many positional arguments a bound step takes."""
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return 3
    return sum(k in _POSITIONAL for k in kinds)
