"""``paceline recipes``."""

from __future__ import annotations

import typer

from ..recipes import RECIPES


def recipes() -> None:
    """List the recipes."""
    for name, (_, about) in RECIPES.items():
        typer.echo(f"{name:<16}{about}")
