"""Tables and JSON on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from ..common.json_text import json_text

JSON = Annotated[bool, typer.Option("--json", help="As JSON.")]


def print_json(value: Any) -> None:
    """A value as JSON."""
    typer.echo(json_text(value))


def shown_value(value: Any) -> str:
    """A value as a config file has it."""
    is_plain = isinstance(value, str) and value.isprintable()
    return value if is_plain else json.dumps(value, default=str, ensure_ascii=False)


def print_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Rows in columns as wide as their longest cell; the last column is not filled up."""
    cells = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        typer.echo("  ".join(map(str.ljust, row, widths)).rstrip())


@contextmanager
def bytes_bar(label: str, total: int) -> Iterator[Callable[[int], object]]:
    """A progress bar on a terminal's standard error; calls of what it gives add bytes to it.

    Args:
        label: What is being done.
        total: Bytes in all.
    """
    from tqdm import tqdm

    with tqdm(
        total=total,
        desc=label,
        unit="B",
        unit_scale=True,
        leave=False,
        delay=0.5,
        disable=not sys.stderr.isatty(),
    ) as bar:
        yield bar.update
