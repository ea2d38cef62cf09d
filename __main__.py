"""The command line: ``paceline fit RECIPE [key=value ...]``. torch is imported by ``fit`` alone."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from paceline import __version__
from paceline.errors import PacelineError, nearest
from paceline.recipes import RECIPES

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Train a recipe: the same numbers on one device or many.",
)


checkpoint = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at checkpoints.")
app.add_typer(checkpoint, name="checkpoint")


@app.command()
def fit(
    recipe: Annotated[str, typer.Argument(help="A name from `paceline recipes`.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="For instance preset=tiny epochs=5 trainer.precision=bf16."
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file of the same keys.")] = None,
    resume: Annotated[
        str | None, typer.Option(help="auto, latest, best, or a checkpoint or run folder.")
    ] = None,
) -> None:
    """Train a recipe. Settings come from its preset, then the file, then the command line."""
    if recipe not in RECIPES:
        raise PacelineError(
            f"there is no recipe {recipe!r}", allowed=", ".join(RECIPES), meant=nearest(recipe, RECIPES)
        )
    from paceline.trainer.config.recipe_config import load_config

    module = import_module(f"paceline.recipes.{RECIPES[recipe][0]}")
    module.fit(load_config(module.Config, module.PRESETS, config, settings or []), resume)


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,  # what follows the script is the script's
    },
    options_metavar="[--nproc N] [--nnodes N ...]",
)
def launch(
    context: typer.Context,
    script: Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGS]...")],
) -> None:
    """Run a script as ranks; all of torchrun's options are taken.

    A plain `python train.py` with devices=N starts its ranks by itself; this is for several machines.
    """
    from paceline.strategies import launch as start

    raise typer.Exit(start(script))


@app.command()
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
    from paceline.trainer.debug.replay import run_again

    run_again(run, step, accelerator, debug)


@app.command()
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
    from paceline.trainer.debug.diff import compare
    from paceline.trainer.run.find import one_run

    if not replay and (code is not None or accelerator is not None):
        given = "--code" if code is not None else "--accelerator"
        raise PacelineError(f"{given} is for --replay", fix=f"paceline diff {a} {b} --replay {given} ...")
    runs = one_run(a), one_run(b)
    found = compare(*runs)
    if replay and found.first is not None:
        from paceline.trainer.debug.trace import first_tensor

        found.tensor = first_tensor(
            (runs[0].folder, runs[1].folder), found.first, code or (None, None), accelerator
        )
    typer.echo(found.as_json() if as_json else str(found))
    raise typer.Exit(3 if found else 0)


@app.command()
def export(
    source: Annotated[Path, typer.Argument(help="A checkpoint, or a run: its best, else its latest one.")],
    folder: Annotated[Path, typer.Argument(help="Where the files go.")],
    submodule: Annotated[str | None, typer.Option(help="Only this part, by its dotted name.")] = None,
) -> None:
    """Write a checkpoint's weights as one file that plain torch loads."""
    from paceline.trainer.checkpoint import commands as checkpoint_commands
    from paceline.trainer.checkpoint.export import export_checkpoint

    export_checkpoint(checkpoint_commands.one_checkpoint(source), folder, submodule)
    typer.echo(str(folder))


@checkpoint.command()
def ls(path: Annotated[Path, typer.Argument(help="A run, or any folder above.")] = Path("runs")) -> None:
    """List checkpoints."""
    from paceline.trainer.checkpoint import commands as checkpoint_commands

    for line in checkpoint_commands.list_checkpoints(path):
        typer.echo(line)


@checkpoint.command()
def verify(path: Annotated[Path, typer.Argument(help="A checkpoint, a run, or any folder above.")]) -> None:
    """Read every file and compare its checksums; exit code 1 when one is damaged."""
    from paceline.trainer.checkpoint import commands as checkpoint_commands

    whole = True
    for line, good in checkpoint_commands.verify_checkpoints(path):
        typer.echo(line)
        whole = whole and good
    raise typer.Exit(0 if whole else 1)


@checkpoint.command()
def show(path: Annotated[Path, typer.Argument(help="A checkpoint, or a run: its newest one.")]) -> None:
    """Show what is in a checkpoint."""
    from paceline.trainer.checkpoint import commands as checkpoint_commands

    for line in checkpoint_commands.show_checkpoint(path):
        typer.echo(line)


@checkpoint.command()
def consolidate(
    source: Annotated[Path, typer.Argument(help="A checkpoint, or a run: its best, else its latest one.")],
    target: Annotated[Path, typer.Argument(help="The new checkpoint's folder.")],
) -> None:
    """Write a checkpoint of many ranks again as one device would have."""
    from paceline.trainer.checkpoint import commands as checkpoint_commands
    from paceline.trainer.checkpoint.export import consolidate as write

    typer.echo(write(checkpoint_commands.one_checkpoint(source), target))


@app.command()
def migrate(
    path: Annotated[
        Path, typer.Argument(metavar="FILE|FOLDER", help="Python code; it is parsed, never run.")
    ],
    write: Annotated[
        bool, typer.Option("--write", help="Rewrite Lightning code: show the diff, ask, and write.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --write: do not ask, and write over uncommitted changes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The report as a JSON object.")] = False,
) -> None:
    """List what of code for Lightning, Accelerate, transformers or Composer runs here, and what does not.

    The exit code is 0 where nothing has to be rewritten, 1 where something has, and 2 where a file cannot
    be read.
    """
    from functools import partial

    from paceline.compat.migrate import command

    warn = partial(typer.echo, err=True)
    try:
        if (as_json and write) or (yes and not write):
            given, other = ("--json", "without") if write else ("--yes", "with")
            raise PacelineError(f"{given} is {other} --write")
        if write:
            terminal = sys.stdin.isatty() and sys.stdout.isatty()
            code = command.write(path, typer.confirm if terminal else None, yes, typer.echo, warn)
        else:
            code = command.report(path, as_json, typer.echo, warn)
    except PacelineError as error:
        warn(f"error: {error}")
        code = 2
    raise typer.Exit(code)


@app.command()
def recipes() -> None:
    """List the recipes."""
    for name, (_, about) in RECIPES.items():
        typer.echo(f"{name:<16}{about}")


@app.command()
def plugins(
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON list.")] = False,
) -> None:
    """List the callbacks, loggers and strategies of other packages; none is imported."""
    from paceline.plugins import installed, table

    found = installed()
    if as_json:
        typer.echo(json.dumps([asdict(plugin) for plugin in found], indent=1))
    elif found:
        typer.echo("\n".join(table(found)))
    else:
        typer.echo("no package with callbacks, loggers or strategies for paceline is installed")


@app.command("plot-lr")
def plot_lr(
    schedule: Annotated[str, typer.Argument(help="constant, linear, cosine or wsd.")],
    options: Annotated[list[str] | None, typer.Argument(help="Its arguments: warmup=5% end=0.1")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of the run.")] = 1000,
    epoch: Annotated[int | None, typer.Option(min=1, help="Optimizer steps in an epoch.")] = None,
    lr: Annotated[float, typer.Option(min=0.0, help="The optimizer's learning rate.")] = 1.0,
    out: Annotated[Path, typer.Option(help="The picture.")] = Path("lr.png"),
) -> None:
    """Draw a learning rate schedule, without a run."""
    from paceline.schedule_plot import plot, read_options
    from paceline.schedules import RunLength, make_schedule

    made, length = make_schedule(schedule, **read_options(options or [])), RunLength(steps, epoch)
    plot(made, out, length, lr)
    for step in sorted({1, steps // 10, steps // 2, steps * 9 // 10, steps} - {0}):
        typer.echo(f"step {step:>9}  {lr * made.factor(step - 1, length):.6g}")
    typer.echo(out)


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders above.")],
    metric: Annotated[
        list[str] | None, typer.Option(help="Only this value or panel: val/loss, or loss. Repeatable.")
    ] = None,
    x: Annotated[str, typer.Option(help="step, epoch, time, samples or tokens.")] = "step",
    out: Annotated[
        Path | None, typer.Option(help="The picture: curves.png, in the folder of a single run.")
    ] = None,
) -> None:
    """Draw the curves of runs into one picture."""
    from paceline.trainer.report.picture import plot_runs

    typer.echo(plot_runs(runs, out, metric or [], x))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders above.")],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
) -> None:
    """Write one HTML page about runs: charts, values, differences, checkpoints, warnings."""
    from paceline.trainer.report.page import write_report

    typer.echo(write_report(runs, out))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"paceline {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; a mistake is one message and exit code 1."""
    try:
        app()
    except PacelineError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
