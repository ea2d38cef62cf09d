"""``paceline checkpoint ls | verify | show | consolidate`` and ``paceline export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    source: Annotated[Path, typer.Argument(help="A checkpoint, or a run: its best, else its latest one.")],
    folder: Annotated[Path, typer.Argument(help="Where the files go.")],
    submodule: Annotated[str | None, typer.Option(help="Only this part, by its dotted name.")] = None,
) -> None:
    """Write a checkpoint's weights as one file that plain torch loads."""
    from ..trainer.checkpoint import commands as checkpoint_commands
    from ..trainer.checkpoint.export import export_checkpoint

    export_checkpoint(checkpoint_commands.one_checkpoint(source), folder, submodule)
    typer.echo(str(folder))


def ls(path: Annotated[Path, typer.Argument(help="A run, or any folder above.")] = Path("runs")) -> None:
    """List checkpoints."""
    from ..trainer.checkpoint import commands as checkpoint_commands

    for line in checkpoint_commands.list_checkpoints(path):
        typer.echo(line)


def verify(path: Annotated[Path, typer.Argument(help="A checkpoint, a run, or any folder above.")]) -> None:
    """Read every file and compare its checksums; exit code 1 when one is damaged."""
    from ..trainer.checkpoint import commands as checkpoint_commands

    whole = True
    for line, good in checkpoint_commands.verify_checkpoints(path):
        typer.echo(line)
        whole = whole and good
    raise typer.Exit(0 if whole else 1)


def show(path: Annotated[Path, typer.Argument(help="A checkpoint, or a run: its newest one.")]) -> None:
    """Show what is in a checkpoint."""
    from ..trainer.checkpoint import commands as checkpoint_commands

    for line in checkpoint_commands.show_checkpoint(path):
        typer.echo(line)


def consolidate(
    source: Annotated[Path, typer.Argument(help="A checkpoint, or a run: its best, else its latest one.")],
    target: Annotated[Path, typer.Argument(help="The new checkpoint's folder.")],
) -> None:
    """Write a checkpoint of many ranks again as one device would have."""
    from ..trainer.checkpoint import commands as checkpoint_commands
    from ..trainer.checkpoint.export import consolidate as write

    typer.echo(write(checkpoint_commands.one_checkpoint(source), target))
