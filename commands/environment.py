"""``paceline env`` and ``paceline plugins``: what is installed here."""

from __future__ import annotations

from dataclasses import asdict

import typer

from .output import JSON, print_json


def env(as_json: JSON = False) -> None:
    """Show versions, devices, limits, the commit and the variables that matter; secrets are masked.

    Each run keeps the same in its env.json, under `machine`.
    """
    from ..trainer.run.environment_report import environment_report, report_text

    report = environment_report()
    if as_json:
        print_json(report)
    else:
        typer.echo(report_text(report))


def plugins(as_json: JSON = False) -> None:
    """List the callbacks, loggers, strategies and checks of other packages; none is imported."""
    from ..plugins import installed, table

    found = installed()
    if as_json:
        print_json([asdict(plugin) for plugin in found])
    elif found:
        typer.echo("\n".join(table(found)))
    else:
        typer.echo("no package with callbacks, loggers, strategies or checks for paceline is installed")
