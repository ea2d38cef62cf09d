"""Which tier a test belongs to, by what its code and its fixtures reach.

``launch``: they start commands (``subprocess`` or ``helpers.processes``); ``ranks``: they fork ranks from
the server (``helpers.ranks``); ``fit``: they use a trainer, or a helper that has one; ``unit``: all others.
A mark in the file takes precedence, as in files about the worker processes of loaders.
"""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeGuard

import pytest

from . import processes

TIERS = ("unit", "fit", "ranks", "launch")
TRAINING = frozenset({"Trainer", "fit"})
"""What code that trains names."""
collected: dict[str, set[str]] = {}
"""The tiers of every test that was collected, by its name without parameters."""
_current = ""


def mark(items: list[pytest.Item]) -> None:
    """Mark each test with its tier."""
    for item in items:
        tier = next((name for name in TIERS if item.get_closest_marker(name)), None) or tier_of(item)
        item.add_marker(tier)
        collected.setdefault(item.nodeid.partition("[")[0], set()).add(tier)


def tier_of(item: pytest.Item) -> str:
    """The tier of a test that is not marked."""
    fixtures = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    functions = [item.function, *(f.func for name in item.fixturenames for f in fixtures.get(name, ()))]  # type: ignore[attr-defined]
    reached = set[str]().union(*map(_reached_by, functions))
    return highest(reached)


def highest(reached: set[str]) -> str:
    """The one of these tiers that runs most; ``unit`` where there is none."""
    return next((name for name in reversed(TIERS) if name in reached), "unit")


@functools.cache  # cases and fixtures are many, functions few
def _reached_by(function: Any) -> frozenset[str]:
    return frozenset(_reached(function, set()))


def _reached(found: Any, seen: set[Any]) -> Iterator[str]:
    """The tiers of what a function or a class uses, through functions and classes of its own module."""
    if isinstance(found, type) and found not in seen:
        seen.add(found)  # an autograd Function and its backward name each other
        for part in vars(found).values():
            yield from _reached(part, seen)
    found = inspect.unwrap(found) if callable(found) else found
    if not isinstance(found, FunctionType) or found in seen:
        return
    seen.add(found)
    for name in names_of(found.__code__):
        used = found.__globals__.get(name)
        module = used if isinstance(used, ModuleType) else sys.modules.get(getattr(used, "__module__", ""))
        if name in TRAINING or (is_helper(module) and "Trainer" in vars(module)):
            yield "fit"
        if used is subprocess or used is processes:
            yield "launch"
        elif getattr(used, "__module__", None) == "helpers.ranks":
            yield "ranks"
        elif getattr(used, "__module__", None) == found.__module__:
            yield from _reached(used, seen)


def is_helper(module: ModuleType | None) -> TypeGuard[ModuleType]:
    return module is not None and module.__name__.startswith("helpers.")


def names_of(code: CodeType) -> Iterator[str]:
    """The names that compiled code uses, with those of functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_of(constant)


# -- a test in one process starts no interpreter ---------------------------------------------------


def watch() -> None:
    """Let a test of the tiers ``unit`` and ``fit`` fail that starts a Python interpreter."""
    sys.addaudithook(_audit)


def begin(item: pytest.Item | None) -> None:
    """This test is under way; None: none is."""
    global _current
    alone = item is not None and any(map(item.get_closest_marker, ("unit", "fit")))
    _current = item.nodeid if item is not None and alone else ""


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _current and event == "subprocess.Popen" and sys.executable in str(arguments[1]):
        raise AssertionError(f"{_current} starts a process and is no test of the tiers unit and fit")
