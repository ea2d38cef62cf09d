"""``paceline replay`` and ``paceline diff``: a step again, and two runs compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import PacelineError


def replay(
    run: Annotated[Path, typer.Argument(help="The run's folder, runs/<name>/<n>.")],
    step: Annotated[int, typer.Option(help="Which step, from 1.")],
    accelerator: Annotated[str, typer.Option(help="Where to compute: cpu, gpu, ...")] = "auto",
    debug: Annotated[
        bool, typer.Option("--pdb", help="Enter the debugger at the step, and after an error.")
    ] = False,
) -> None:
    """Run a step of a run again, alone, with its samples and random draws, and without its update.

    The run's own command is started again in its folder; nothing is written.
    """
    from ..trainer.debug.replay import run_again

    run_again(run, step, accelerator, debug)


def diff(
    a: Annotated[Path, typer.Argument(metavar="RUN_A", help="A run's folder, runs/<name>/<n>.")],
    b: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another one.")],
    replay: Annotated[
        bool, typer.Option("--replay", help="Repeat the first step that differs, and name the tensor.")
    ] = False,
    code: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="A_DIR B_DIR", help="With --replay: the folders to start the runs' commands in."
        ),
    ] = None,
    accelerator: Annotated[
        str | None, typer.Option(help="With --replay: where to compute; else as the scripts say.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON object.")] = False,
) -> None:
    """Name the first step at which two runs differ.

    Settings and environments are compared too.

    The exit code is 0 where every compared step is the same, and 3 where one differs.
    """
    from ..trainer.debug.diff import compare
    from ..trainer.run.find import one_run

    if not replay and (code is not None or accelerator is not None):
        given = "--code" if code is not None else "--accelerator"
        raise PacelineError(f"{given} is for --replay", fix=f"paceline diff {a} {b} --replay {given} ...")
    runs = one_run(a), one_run(b)
    found = compare(*runs)
    if replay and found.first is not None:
        from ..trainer.debug.trace import first_tensor

        found.tensor = first_tensor(
            (runs[0].folder, runs[1].folder), found.first, code or (None, None), accelerator
        )
    typer.echo(found.as_json() if as_json else str(found))
    raise typer.Exit(3 if found else 0)
