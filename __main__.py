"""The command line: ``paceline COMMAND``. The commands are in ``commands/``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from paceline import __version__
from paceline.commands import (
    checkpoint,
    compare,
    doctor,
    environment,
    launch,
    migrate,
    pictures,
    plugins,
    recipes,
    train,
)
from paceline.errors import PacelineError


def _hyphens(name: str) -> str:
    """``plot_lr`` is ``plot-lr``; of options too."""
    return name.replace("_", "-")


_SETTINGS = {"token_normalize_func": _hyphens, "help_option_names": ["-h", "--help"]}


def _group(text: str, **options: object) -> typer.Typer:
    return typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=_SETTINGS,
        help=text,
        **options,  # type: ignore[arg-type]
    )


app = _group("Train with PyTorch: the same numbers on one device or many.")
_COMMANDS: tuple[Callable[..., None], ...] = (
    *(train.fit, recipes.recipes, compare.replay, compare.diff, checkpoint.export),
    *(pictures.plot, pictures.report, migrate.migrate, plugins.plugins),
    *(environment.env, doctor.doctor),
)
for _command in _COMMANDS:
    app.command()(_command)
app.command("plot-lr")(pictures.plot_lr)
app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,  # what follows the script is the script's
    },
    options_metavar="[--nproc N] [--nnodes N ...]",
)(launch.launch)

_checkpoint = _group("Look at checkpoints.")
_OF_CHECKPOINTS: tuple[Callable[..., None], ...] = (
    *(checkpoint.ls, checkpoint.verify, checkpoint.show, checkpoint.consolidate),
)
for _command in _OF_CHECKPOINTS:
    _checkpoint.command()(_command)
app.add_typer(_checkpoint, name="checkpoint")


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
