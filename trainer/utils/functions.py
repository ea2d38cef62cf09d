"""What Python knows of a user's functions."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def source_of(function: Callable[..., Any]) -> str:
    """``, file:line`` of a function, where Python knows it."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f", {code.co_filename}:{code.co_firstlineno}" if code else ""


def returns_value(function: Callable[..., Any]) -> bool:
    """Whether a function has a ``return`` of anything but None; True where its source is not known."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):
        return True
    if not tree.body or not isinstance(tree.body[0], ast.FunctionDef):
        return True
    nothing = ast.Constant(None)
    rest: list[ast.AST] = list(tree.body[0].body)
    while rest:
        node = rest.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(node, ast.Return) and ast.dump(node.value or nothing) != ast.dump(nothing):
            return True
        rest += ast.iter_child_nodes(node)
    return False


def positional_arguments(function: Callable[..., Any]) -> int:
    """How many positional arguments a bound step takes."""
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return 3
    return sum(k in _POSITIONAL for k in kinds)
