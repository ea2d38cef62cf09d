"""``paceline launch``: a script as ranks."""

from __future__ import annotations

from typing import Annotated

import typer


def launch(
    context: typer.Context,
    script: Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGS]...")],
) -> None:
    """Run a script as ranks; all of torchrun's options are taken.

    A plain `python train.py` with devices=N starts its ranks by itself; this is for several machines.
    """
    from ..strategies import launch as start

    raise typer.Exit(start(script))
