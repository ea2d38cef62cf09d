"""What the code of a user's functions says: seeds that are written there, and random numbers."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

_SEEDERS = {"seed", "manual_seed", "default_rng", "RandomState", "seed_everything"}
_RANDOM = {"rand", "randn", "randint", "rand_like", "randn_like", "randperm", "normal", "uniform", "random"}
_RANDOM |= {"choice", "choices", "shuffle", "bernoulli", "normal_", "uniform_", "bernoulli_", "gauss"}
_RANDOM |= {"RandomState", "default_rng", "integers", "standard_normal", "sample"}
_LIBRARIES = {"torch", "numpy", "random", "torchvision"}
_SHARED = {"torch", "random", "np.random", "numpy.random"}
_MOST = 40


def _code_of(function: Any) -> CodeType | None:
    function = inspect.unwrap(getattr(function, "__func__", function))
    return function.__code__ if isinstance(function, FunctionType) else None


def methods_behind(thing: Any, start: str) -> list[tuple[str, Any]]:
    """The methods that one calls, and those of objects that it has: ``("Pictures.augment", function)``."""
    found: dict[int, tuple[str, Any]] = {}
    waiting = [(thing, start)]
    while waiting and len(found) < _MOST:
        owner, name = waiting.pop()
        function = getattr(type(owner), name, None) if owner is not None else None
        code = _code_of(function)
        if code is None or id(code) in found or _is_library(function):
            continue
        found[id(code)] = (f"{type(owner).__name__}.{name}", function)
        own = getattr(owner, "__dict__", {})
        for used in _names_in(code):
            if isinstance(getattr(type(owner), used, None), FunctionType):
                waiting.append((owner, used))
            held = own.get(used)
            if isinstance(held, FunctionType) and not _is_library(held):
                found[id(held.__code__)] = (used, held)
            elif held is not None and callable(held):
                waiting.append((held, "__call__"))
        for outer in _functions_around(function):
            found.setdefault(id(outer.__code__), (outer.__name__, outer))
    return list(found.values())


def _functions_around(function: Any) -> Iterator[FunctionType]:
    """Functions of the user that one names, from its module or the function around it."""
    try:
        outside = inspect.getclosurevars(inspect.unwrap(function))
    except (TypeError, ValueError):
        return
    for one in (*outside.globals.values(), *outside.nonlocals.values()):
        if isinstance(one, FunctionType) and not _is_library(one):
            yield one


def _is_library(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] in _LIBRARIES


def _names_in(code: CodeType) -> set[str]:
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*(_names_in(one) for one in inner))


def constant_seeds(function: Any, of_all: bool = False) -> Iterator[tuple[str, int]]:
    """Calls that seed a generator with a number that is written in the code.

    Args:
        function: Of the user.
        of_all: Only those that seed a generator that all code shares, as ``torch.manual_seed`` does.
    """
    if _code_of(function) is None:
        return
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):  # there is no file, or the lines are no whole statement
        return
    for call in ast.walk(tree):
        if (
            not isinstance(call, ast.Call)
            or len(call.args) != 1
            or not isinstance(call.args[0], ast.Constant)
        ):
            continue
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        seed = call.args[0].value
        shared = name == "seed_everything" or ast.unparse(call.func).rpartition(".")[0] in _SHARED
        if name in _SEEDERS and type(seed) is int and (shared or not of_all):
            yield name, seed


def draws_random_numbers(function: Any) -> bool:
    """Whether a function names something that draws random numbers."""
    code = _code_of(function)
    return code is not None and not _is_library(function) and bool(_names_in(code) & _RANDOM)


def fixed_draws(dataset: Any) -> Iterator[str]:
    """Callables of a dataset that draw in their constructor, and not when they are called."""
    for held in getattr(dataset, "__dict__", {}).values():
        kind = type(held)
        call, made = vars(kind).get("__call__"), kind.__dict__.get("__init__")
        if made is None or isinstance(held, type) or _is_library(kind):
            continue
        if draws_random_numbers(made) and _code_of(call) is not None and not draws_random_numbers(call):
            yield kind.__name__
