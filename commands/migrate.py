"""``paceline migrate``: what code for other trainers needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import PacelineError, with_notes


def migrate(
    path: Annotated[
        Path, typer.Argument(metavar="FILE|FOLDER", help="Python code; it is parsed, never run.")
    ],
    write: Annotated[
        bool, typer.Option("--write", help="Rewrite Lightning code: show the diff, ask, and write.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --write: do not ask, and write over uncommitted changes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The report as a JSON object.")] = False,
) -> None:
    """List what of code for Lightning, Accelerate, transformers or Composer runs here, and what does not.

    The exit code is 0 where nothing has to be rewritten, 1 where something has, and 2 where a file cannot
    be read.
    """
    from functools import partial

    from ..compat.migrate import command

    warn = partial(typer.echo, err=True)
    try:
        if (as_json and write) or (yes and not write):
            given, other = ("--json", "without") if write else ("--yes", "with")
            raise PacelineError(f"{given} is {other} --write", code="options-conflict")
        if write:
            terminal = sys.stdin.isatty() and sys.stdout.isatty()
            code = command.write(path, typer.confirm if terminal else None, yes, typer.echo, warn)
        else:
            code = command.report(path, as_json, typer.echo, warn)
    except PacelineError as error:
        warn(f"error: {with_notes(error)}")
        code = 2
    raise typer.Exit(code)
