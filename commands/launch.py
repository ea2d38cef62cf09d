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

    With --slurm it writes SCRIPT.sbatch and submits it as a job: --nnodes machines, --sbatch NAME=VALUE for
    each further option of sbatch, --dry-run to print the script instead.
    """
    from ..strategies import launch as start

    raise typer.Exit(start(script))
