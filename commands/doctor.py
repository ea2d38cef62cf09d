"""``paceline doctor``."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from .output import JSON, print_json


def doctor(
    target: Annotated[
        str | None,
        typer.Argument(
            help="Your own training, run for one step too: a Python script, or what `paceline fit` takes."
        ),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORD", help="What follows TARGET; write -- before options."),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Ranks to start; else one for each device, 2 on a CPU.")
    ] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(help="Repeatable; else those that docs/guides/doctor.md names."),
    ] = None,
    accelerator: Annotated[str, typer.Option(help="cpu, gpu, ...")] = "auto",
    run_dir: Annotated[Path, typer.Option(help="Where your runs are written.")] = Path("runs"),
    workers: Annotated[
        int | None, typer.Option(min=0, help="Loader workers of each rank; else 8, or one a processor.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds that one check may take.")] = 60.0,
    as_json: JSON = False,
) -> None:
    """Check that training works here, by training a little on real ranks.

    The exit code is 0 when nothing FAILED, else 1.
    """
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, _end)
    from ..common.version import __version__
    from ..doctor import table
    from ..doctor.examination import Examination
    from ..doctor.target import Target
    from ..strategies.machine.backends import usual_strategies

    examination = Examination(
        strategies=list(dict.fromkeys(strategy or usual_strategies())),
        devices=devices,
        accelerator=accelerator,
        target=None if target is None else Target(target, tuple(words or ())),
        own_strategies=strategy or (None,),
        run_dir=run_dir,
        workers=workers,
        seconds=timeout,
    )
    if examination.is_for_another_rank():
        typer.echo("the first rank of each machine runs the checks; this is another one", err=True)
        raise typer.Exit(0)
    findings = examination.run()
    ranks, kind = examination.ranks, examination.kind
    seconds = time.monotonic() - begun
    if as_json:
        found = table.as_data(
            findings, version=__version__, ranks=ranks, device=kind, seconds=round(seconds, 1)
        )
        print_json(found)
    else:
        where = f"{ranks} rank{'s' * (ranks != 1)} on {kind}" if ranks else "no ranks"
        heading = f"paceline {__version__}: {where}, in {seconds:.0f} s"
        typer.echo(table.text(findings, heading))
    raise typer.Exit(1 if table.worst(findings) == "FAILED" else 0)


def _end(number: int, frame: FrameType | None) -> None:
    """End in order, so that no rank outlives this process."""
    sys.exit(128 + number)
