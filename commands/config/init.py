"""``paceline config init``: a config file by answers, or of another trainer's configuration."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import PacelineError, shown
from ..output import print_json

if TYPE_CHECKING:
    from ...compat.configs.reading import Note, Reading


_Source = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="A file of accelerate config, JSON for ZeRO, or a file of LLaMA-Factory or Axolotl.",
    ),
]


def init(
    file: Annotated[Path, typer.Argument(help="The file that is written.")] = Path("paceline.yaml"),
    source: _Source = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --from: the report as JSON.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Ask nothing: defaults for what no option says.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    environment: Annotated[
        str | None, typer.Option(help="Where it runs: this, several (machines), or slurm.")
    ] = None,
    machines: Annotated[str | None, typer.Option(help="Number of machines.")] = None,
    address: Annotated[str | None, typer.Option(help="The machine with rank 0.")] = None,
    port: Annotated[str | None, typer.Option(help="A port there.")] = None,
    accelerator: Annotated[str | None, typer.Option(help="auto, cpu, gpu, or a device type.")] = None,
    devices: Annotated[str | None, typer.Option(help="Ranks on each machine, or ids, or auto.")] = None,
    strategy: Annotated[str | None, typer.Option(help="How ranks share the work.")] = None,
    strategy_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An argument of the strategy.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="For instance 32 or bf16.")] = None,
    compile: Annotated[str | None, typer.Option(help="no, yes, blocks, or a mode.")] = None,
    debug: Annotated[bool | None, typer.Option(help="Check collectives.")] = None,
    numa_affinity: Annotated[
        bool | None, typer.Option(help="Keep ranks on the processors nearest to their device.")
    ] = None,
) -> None:
    """Write a config file: by questions on a terminal, by these options elsewhere, or --from another one.

    In a pipe, or with --yes, nothing is asked: what no option says has its default for this machine.
    """
    answers = {
        "environment": environment,
        "machines": machines,
        "address": address,
        "port": port,
        "accelerator": accelerator,
        "devices": devices,
        "strategy": strategy,
        "strategy-option": "\n".join(strategy_option) if strategy_option else None,
        "precision": precision,
        "compile": compile,
        "debug": _word(debug),
        "numa-affinity": _word(numa_affinity),
    }
    prompts = sys.stdin.isatty() and sys.stdout.isatty() and not yes
    try:
        if source is not None:
            _from(source, file, {k for k, v in answers.items() if v is not None}, as_json, prompts, force)
        elif as_json:
            raise PacelineError(
                "--json is the report of --from", code="options-conflict", fix="add --from FILE"
            )
        else:
            _by_answers(file, answers, prompts, force)
    except (typer.Abort, KeyboardInterrupt):
        typer.echo("\nnothing was written", err=True)
        raise typer.Exit(130) from None


def _word(switch: bool | None) -> str | None:
    return None if switch is None else "yes" if switch else "no"


def _may_write(file: Path, prompts: bool, force: bool) -> None:
    target = file.expanduser()
    if target.is_dir() or not target.absolute().parent.is_dir():
        what = "is a folder" if target.is_dir() else "is in a folder that is not there"
        raise PacelineError(
            f"{file} {what}", code="cannot-write", fix="name a file in a folder that exists"
        )
    if not target.exists() or force:
        return
    if not prompts:
        raise PacelineError(f"{file} exists already", code="file-exists", fix="--force replaces it")
    if not typer.confirm(f"{file} exists already; replace it?"):
        raise typer.Abort


def _by_answers(file: Path, answers: dict[str, Any], prompts: bool, force: bool) -> None:
    from ..questions import Asker
    from .file import config_text, write_text
    from .questions import ask_all, find_here

    _may_write(file, prompts, force)
    if prompts:
        typer.echo("The return key takes the answer in brackets, ? explains a question, Ctrl-C ends.")
    plan = ask_all(Asker(answers, prompts), find_here())
    commands = plan.commands(str(file))
    write_text(file, config_text(plan.trainer, _head("written by paceline config init", commands)))
    typer.echo(f"wrote {file}")
    _next(commands)


def _head(made_by: str, commands: Sequence[str], recipe: str = "") -> list[str]:
    what = f"A run of paceline's recipe {recipe}" if recipe else "Arguments of paceline's Trainer"
    return [
        f"{what}, {made_by}.",
        "Run it with:",
        *(f"  {command}" for command in commands),
    ]


def _next(commands: Sequence[str], to_stderr: bool = False) -> None:
    where = "next, on each machine its own:" if len(commands) > 1 else "next:"
    if commands[0].startswith("paceline launch") and len(commands) == 1:
        where = "next, on each machine:"
    typer.echo(where, err=to_stderr)
    for command in commands:
        typer.echo(f"  {command}", err=to_stderr)
    if any("RECIPE" in command for command in commands):
        typer.echo("`paceline recipes` lists what RECIPE may be", err=to_stderr)


def _from(source: Path, file: Path, flags: set[str], as_json: bool, prompts: bool, force: bool) -> None:
    from ...compat.configs.recognise import read_configuration
    from .file import config_text, write_text

    if flags:
        raise PacelineError(
            "--from takes all answers from the file",
            code="options-conflict",
            got=", ".join(f"--{f}" for f in flags),
        )
    fit = f"paceline fit RECIPE --config {shlex.quote(str(file))}"
    reading = read_configuration(source, f"-m {fit}", _settings_of)
    if reading.recipe:
        fit = f"paceline fit {shlex.quote(str(file))}"
    commands = reading.launch or (fit,)
    if not reading.refused:  # written first: a pipe that is closed early costs lines, not the file
        _may_write(file, prompts, force)
        head = _head(f"from {source} ({reading.source})", commands, reading.recipe)
        settings = {"recipe": reading.recipe, **reading.settings} if reading.recipe else {}
        write_text(file, config_text(reading.trainer, head, _left(reading), settings))
    if as_json:
        written = None if reading.refused else str(file)
        print_json(reading.as_dict() | {"file": written})
    else:
        typer.echo("\n".join(_table(reading)))
    if reading.refused:
        raise _refusal(source, reading.refused)
    typer.echo(f"wrote {file}", err=as_json)
    _next(commands, as_json)


def _settings_of(recipe: str) -> Collection[str]:
    from ..targets import recipe_of_target

    return recipe_of_target(recipe).config.model_fields


def _refusal(source: Path, refused: Sequence[Note]) -> PacelineError:
    first = refused[0]
    return PacelineError(
        f"{source} cannot be served, and nothing was written",
        code="config-of-others",
        where=f"{first.path} ({first.place})",
        got=shown(first.value),
        fix="; ".join(dict.fromkeys(note.became for note in refused)),
    )


def _table(reading: Reading) -> list[str]:
    """A line for each key: where it is, its value, the outcome, and what became of it."""
    from ...compat.configs.reading import text_of

    rows = [
        (note.place, f"{note.path}: {text_of(note.value, 40)}", note.outcome, note.became)
        for note in reading.notes
    ]
    widths = [max(len(row[n]) for row in rows) for n in range(3)]
    return ["  ".join([*(row[n].ljust(widths[n]) for n in range(3)), row[3]]) for row in rows]


def _left(reading: Reading) -> list[str]:
    """What the file does not carry, for a comment."""
    left = [note for note in reading.notes if note.outcome in ("elsewhere", "no counterpart", "unknown")]
    lines = [f"  {note.path} ({note.place}), {note.outcome}: {note.became}" for note in left]
    return ["Not in this file:", *lines] if lines else []
