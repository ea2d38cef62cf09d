"""``paceline env``."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def env(as_json: Annotated[bool, typer.Option("--json", help="As a JSON object.")] = False) -> None:
    """Show versions, devices, limits, the commit and the variables that matter; secrets are masked.

    Each run keeps the same in its env.json, under `machine`.
    """
    from ..trainer.run.environment_report import environment_report, report_text

    report = environment_report()
    typer.echo(json.dumps(report, indent=1) if as_json else report_text(report))
