"""What a class or function takes, from its own signature, as a model of pydantic checks it."""

from __future__ import annotations

import collections.abc
import inspect
import typing
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model

CONFIG = ConfigDict(arbitrary_types_allowed=True)


def parameters_of(
    target: Callable[..., Any], provided: int = 0
) -> tuple[dict[str, inspect.Parameter], bool]:
    """What can be given by name, with types resolved, and whether others are taken too.

    Args:
        target: A class or a function.
        provided: How many of the first arguments are skipped.
    """
    function: Any = target
    skipped = provided
    if isinstance(target, type):
        own_init = target.__init__ is not object.__init__  # type: ignore[misc]
        function = target.__init__ if own_init else target  # type: ignore[misc]
        skipped += own_init  # self
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some functions in C
        return {}, True
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    hints = _hints(function, [p.name for p in signature.parameters.values() if p.kind not in variadic])
    found: dict[str, inspect.Parameter] = {}
    takes_more = False
    for parameter in list(signature.parameters.values())[skipped:]:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            takes_more = parameter.name != "unknown"  # which our own classes refuse
        elif parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            found[parameter.name] = parameter.replace(annotation=hints.get(parameter.name, Any))
    base = _base_with_init(target) if takes_more and isinstance(target, type) else None
    if base is not None:  # ``**more`` is most often passed on to it
        inherited, _ = parameters_of(base)
        found = {name: one.replace(default=None) for name, one in inherited.items()} | found
    return found, takes_more


def _base_with_init(cls: type) -> type | None:
    """The class whose ``__init__`` follows that of a class in its order of bases."""
    having = [one for one in cls.__mro__[:-1] if "__init__" in vars(one)]
    return having[1] if len(having) > 1 else None


def _hints(function: Any, wanted: list[str]) -> dict[str, Any]:
    """Types of these parameters; Any where one cannot be resolved or is none that pydantic can check."""
    function = inspect.unwrap(function)
    if isinstance(function, partial):
        function = function.func
    found: dict[str, Any] = {}
    names, annotations = getattr(function, "__globals__", {}), getattr(function, "__annotations__", {})
    for name in set(wanted) & set(annotations):
        try:
            one = SimpleNamespace(__annotations__={name: annotations[name]})
            hint = typing.get_type_hints(one, names, include_extras=True)[name]
            create_model("Probe", __config__=CONFIG, probe=(hint, ...))
        except Exception:  # names that exist for type checkers only, and types of other libraries
            hint = Any
        found[name] = hint
    return found


def fields_of(names: Mapping[str, Any]) -> dict[str, str]:
    """Fields by argument: an argument may have a name that a pydantic model has for itself."""
    return {name: f"argument_{number}" for number, name in enumerate(names)}


def model_of(target: Any, parameters: Mapping[str, inspect.Parameter]) -> type[BaseModel]:
    """A pydantic model of these arguments."""
    fields: dict[str, Any] = {}
    for name, inner in fields_of(parameters).items():
        parameter = parameters[name]
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[inner] = (parameter.annotation, Field(default, alias=name))
    return create_model(
        name_of(target),
        __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True),
        **fields,
    )


def takes_callable(annotation: Any) -> bool:
    """Whether a parameter of this type may be a function or a class.

    Example:
        >>> takes_callable(Callable[..., int] | None), takes_callable(int)
        (True, False)
    """
    origins = [get_origin(kind) or kind for kind in kinds_of(annotation)]
    return collections.abc.Callable in origins or type in origins


def kinds_of(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the type alone."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def is_plain_class(kind: Any) -> bool:
    """Whether a type is a class that ``issubclass`` can be asked about."""
    return isinstance(kind, type) and get_origin(kind) is None and not getattr(kind, "_is_protocol", False)


def name_of(target: Any) -> str:
    """What a class or function is called in messages."""
    return str(getattr(target, "__name__", type(target).__name__))
