"""``paceline env`` and ``paceline plugins``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer


def env(as_json: Annotated[bool, typer.Option("--json", help="As a JSON object.")] = False) -> None:
    """Show versions, devices, limits, the commit and the variables that matter; secrets are masked.

    Each run keeps the same in its env.json, under `machine`.
    """
    from ..trainer.run.environment_report import environment_report, report_text

    report = environment_report()
    typer.echo(json.dumps(report, indent=1) if as_json else report_text(report))


def plugins(
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON list.")] = False,
) -> None:
    """List the callbacks, loggers and strategies of other packages; none is imported."""
    from ..plugins import installed, table

    found = installed()
    if as_json:
        typer.echo(json.dumps([asdict(plugin) for plugin in found], indent=1))
    elif found:
        typer.echo("\n".join(table(found)))
    else:
        typer.echo("no package with callbacks, loggers or strategies for paceline is installed")
