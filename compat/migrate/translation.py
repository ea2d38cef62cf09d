"""What becomes of the arguments of a call, and what their code says before anything runs."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from .edits import Put
from .resolve import code_of
from .tables import Entry, rewrite

Values = Mapping[str, cst.BaseExpression]


@dataclass
class Translation:
    """What becomes of the arguments of one call, where the table alone does not say it.

    Args:
        entries: In place of the table's, by keyword.
        put: What stands in the argument's place; None: it is left as it is.
        extra: Arguments that are added.
        added: Findings about the call itself.
        imports: Names that the new arguments need: module and name.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    put: dict[str, Put | None] = field(default_factory=dict)
    extra: list[tuple[str, str]] = field(default_factory=list)
    added: list[Entry] = field(default_factory=list)
    imports: set[tuple[str, str]] = field(default_factory=set)

    def leave(self, name: str, text: str) -> None:
        """It cannot be translated: say what to write."""
        self.entries[name] = rewrite(text)
        self.put[name] = None


UNKNOWN = object()


def literal(node: cst.BaseExpression | None) -> Any:
    """The value of a literal; ``UNKNOWN`` for anything else, None where there is no node."""
    if node is None:
        return None
    try:
        return ast.literal_eval(code_of(node))
    except (ValueError, SyntaxError, TypeError):
        return UNKNOWN


def epochs(node: cst.BaseExpression) -> str | None:
    """A number of epochs as the code of a duration."""
    value = literal(node)
    if value is not UNKNOWN:
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
        return f'"{value:g}ep"' if number else None
    code = code_of(node)
    return None if set(code) & set("\"'{}\n\\") else f'f"{{{code}}}ep"'
