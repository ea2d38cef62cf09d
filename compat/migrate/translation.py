"""What becomes of the arguments of a call, and what their code says before anything runs."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from .edits import Put
from .resolve import code_of
from .tables import Entry, Group, rewrite

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


def full_name(key: str, phase: str | None = None) -> str | None:
    """A metric of Lightning as it is called here; None where that is not sure.

    Args:
        key: Its name there, with ``/dataloader_idx_1`` at the end where it has that.
        phase: That of an evaluation, of which all the values are; None: unknown.
    """
    name, _, loader = key.partition("/dataloader_idx_")
    of = next((one for one in ("val", "test") if name.startswith((f"{one}_", f"{one}/"))), None)
    if of is not None:
        short = name[len(of) + 1 :]
        short = short.removesuffix("_epoch") if name[len(of)] == "_" else short
    elif phase is not None and not name.startswith("train"):
        of, short = phase, name.removesuffix("_epoch")
    else:
        return None
    return f"{of}/{loader}/{short}" if loader else f"{of}/{short}"


def put_of(name: str, entry: Entry | None, done: Translation, stays: bool, by_name: bool) -> Put | None:
    """What takes an argument's place; None leaves it."""
    if name in done.put:
        return done.put[name]
    if entry is None or (entry.new is None and entry.group is not Group.RUNS):
        return None
    if entry.new == "":
        return []
    if stays or (by_name and not entry.new):
        return None
    return [(entry.new or name, None)]
