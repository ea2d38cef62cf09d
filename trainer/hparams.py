"""The arguments that a module was built with, as it records them by itself."""

from __future__ import annotations

from typing import Any

from .checkpoint.files.json_codec import is_plain
from .module_parts.recorded import HParams, record


def bound_arguments(cls: type, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HParams:
    """The arguments by name, defaults included; plain data is copied.

    Args:
        cls: The class whose constructor is called.
        module: The new object.
        args: As the constructor gets them.
        kwargs: As the constructor gets them.
    """
    return record(cls, module, args, kwargs, is_plain)
