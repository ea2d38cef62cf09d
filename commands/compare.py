"""``paceline replay`` and ``paceline diff``: a step again, and two runs compared."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import PacelineError
from .output import JSON

if TYPE_CHECKING:
    from ..tools.debug.started_command import Command

_TRUST = Annotated[
    bool, typer.Option("--trust", help="Start a command that another user, another host or `-c` gave.")
]
_YES = Annotated[bool, typer.Option("--yes", help="With --trust: do not ask first; for scripts.")]


def replay(
    run: Annotated[Path, typer.Argument(help="The run's folder, runs/<name>/<n>.")],
    step: Annotated[int, typer.Option(help="Which step, from 1.")],
    accelerator: Annotated[str, typer.Option(help="Where to compute: cpu, gpu, ...")] = "auto",
    debug: Annotated[
        bool, typer.Option("--pdb", help="Enter the debugger at the step, and after an error.")
    ] = False,
    trust: _TRUST = False,
    yes: _YES = False,
    as_json: JSON = False,
) -> None:
    """Run a step of a run again, alone, with its samples and random draws, and without its update.

    The run's own command, which is shown first, is started again in its folder; nothing is written.
    """
    from ..tools.debug.replay import replay_as_json, run_again

    if as_json and debug:
        raise PacelineError(
            "--json is without --pdb, whose debugger prints to a terminal", code="options-conflict"
        )
    command = _consented(run, step, trust, yes)
    if as_json:
        typer.echo(replay_as_json(command, run, step, accelerator))
    else:
        run_again(command, run, step, accelerator, debug)


def _consented(run: Path, step: int, trust: bool, yes: bool) -> Command:
    """The command that a run names, shown, and agreed to where others may have written it.

    Raises:
        PacelineError: where it is not, with the flag that does.
        typer.Abort: for another answer than yes on the terminal.
    """
    from ..tools.debug.started_command import started_by

    command = started_by(run, step)
    typer.echo(f"{run} was started by: {command}", err=True)
    if not command.doubt:
        return command
    if not trust:
        raise PacelineError(
            f"this folder names a command that is not started unseen: {command.doubt}",
            code="not-trusted",
            where=str(run),
            got=str(command),
            fix="read the command and the code that it starts, then give --trust",
        )
    if not yes and not sys.stdin.isatty():
        raise PacelineError(
            "--trust asks on a terminal before the command is started, and there is none here",
            code="not-trusted",
            where=str(run),
            got=str(command),
            fix="--trust --yes starts it without asking",
        )
    if not yes:
        typer.confirm(f"{command.doubt}. Start the command?", abort=True, err=True)
    return command


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
    trust: _TRUST = False,
    yes: _YES = False,
    as_json: JSON = False,
) -> None:
    """Name the first step at which two runs differ.

    Settings and environments are compared too.

    The exit code is 0 where every compared step is the same, and 3 where one differs.
    """
    from ..tools.debug.diff import compare
    from ..trainer.run.find import one_run

    options = {"--code": code, "--accelerator": accelerator, "--trust": trust, "--yes": yes}
    given = next((name for name, value in options.items() if value), None)
    if not replay and given is not None:
        raise PacelineError(
            f"{given} is for --replay",
            code="options-conflict",
            fix=f"paceline diff {a} {b} --replay {given} ...",
        )
    runs = one_run(a), one_run(b)
    found = compare(*runs)
    if replay and found.first is not None:
        from ..tools.debug.trace import first_tensor

        folders = runs[0].folder, runs[1].folder
        before = max(1, found.first.step - 1)
        commands = (
            _consented(folders[0], before, trust, yes),
            _consented(folders[1], before, trust, yes),
        )
        found.tensor = first_tensor(folders, commands, found.first, code or (None, None), accelerator)
    typer.echo(found.as_json() if as_json else str(found))
    raise typer.Exit(3 if found else 0)
