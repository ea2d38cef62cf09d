"""Tables and JSON on standard output."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

JSON = Annotated[bool, typer.Option("--json", help="As JSON.")]


def print_json(value: Any) -> None:
    """A value as JSON."""
    typer.echo(json.dumps(value, indent=1, default=str))


def shown_value(value: Any) -> str:
    """A value as a config file has it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def print_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Rows in columns as wide as their longest cell; the last column is not filled up."""
    cells = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        typer.echo("  ".join(map(str.ljust, row, widths)).rstrip())
