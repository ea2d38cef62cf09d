"""Packages whose public names are imported when they are first used, so that a run loads what it needs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package: a name's module is imported, and what it has kept.

    Args:
        package: Its ``__name__``.
        homes: The module of each public name, relative to the package.

    Example:
        >>> __getattr__, __dir__ = lazy_names("paceline.callbacks", {"EMA": "ema"})
        >>> __getattr__("EMA")
        <class 'paceline.callbacks.averages.ema.EMA'>
    """

    def __getattr__(name: str) -> Any:
        if name not in homes:
            from ..other_trainers.imports import missing_name

            raise missing_name(package, name)
        with uncollected_imports():
            found = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return __getattr__, __dir__


@contextmanager
def uncollected_imports() -> Iterator[None]:
    """For imports of many modules: else each collection of garbage scans all that torch has made, 0.1 s."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
