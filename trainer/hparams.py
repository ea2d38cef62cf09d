"""The arguments that a module was built with, as it records them by itself."""

from __future__ import annotations

import copy
import inspect
from typing import Any

from .checkpoint.json_codec import is_plain


def bound_arguments(
    cls: type, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arguments by name, defaults included; plain data is copied.

    Args:
        cls: The class whose constructor is called.
        module: The new object.
        args: As the constructor gets them.
        kwargs: As the constructor gets them.
    """
    signature = inspect.signature(cls.__init__)  # type: ignore[misc]
    try:
        bound = signature.bind(module, *args, **kwargs)
    except TypeError:
        return {}  # copying and unpickling call __new__ alone; a wrong call fails in __init__ itself
    bound.apply_defaults()
    found: dict[str, Any] = {}
    for name, value in list(bound.arguments.items())[1:]:
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found |= value
        elif kind is not inspect.Parameter.VAR_POSITIONAL or value:
            # A constructor may take a dict apart; what is recorded is what it was given.
            found[name] = copy.deepcopy(value) if is_plain(value) else value
    return found
