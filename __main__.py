"""The command line: ``paceline COMMAND``. The commands are in ``commands/``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from paceline import __version__
from paceline.commands import (
    chat,
    check,
    checkpoint,
    compare,
    doctor,
    environment,
    estimate,
    launch,
    migrate,
    pages,
    pictures,
    recipes,
    train,
)
from paceline.commands.config import init, inspection
from paceline.commands.targets import WithSettings
from paceline.errors import (
    PacelineError,
    nearest,
    short_tracebacks,
    shorten_traceback,
    users_line,
    with_notes,
)


def _hyphens(name: str) -> str:
    """``plot_lr`` is ``plot-lr``; of options too."""
    return name.replace("_", "-")


_SETTINGS = {"token_normalize_func": _hyphens, "help_option_names": ["-h", "--help"]}


_PEERS = {
    "train": "fit",
    "run": "fit",
    "resume": "fit --resume latest",
    "eval": "validate",
    "evaluate": "validate",
    "inference": "predict",
    "list": "ls",
    "ls": "list",
}
"""What others call a command."""


class _Commands(TyperGroup):
    """Names the command that was meant, with its group."""

    def get_command(self, context: Any, name: str) -> Any:
        """The command of this name; None where there is none."""
        found = super().get_command(context, name) or super().get_command(context, _hyphens(name))
        if found is not None:
            return found
        groups = {one: getattr(self.commands[one], "commands", {}) for one in self.commands}
        meant = [f"{group} {name}" for group, commands in groups.items() if name in commands]
        if not meant:
            near = _PEERS.get(name, "")
            known = near.partition(" ")[0] in self.commands
            near = near if known else nearest(name, self.commands) or ""
            path = "" if context.parent is None else context.info_name  # of the group
            meant = [f"{path} {near}".strip()] if near else []
        if meant:
            wanted = " or ".join(f"'{one}'" for one in meant)
            context.fail(f"No such command '{name}'. Did you mean {wanted}?")
        return None


def _group(text: str, *, needs_command: bool = True) -> typer.Typer:
    return typer.Typer(
        cls=_Commands,
        suggest_commands=False,  # ours name the group too
        no_args_is_help=needs_command,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=_SETTINGS,
        help=text,
    )


app = _group("Train with PyTorch: the same numbers on one device or many.")
app.command(cls=WithSettings, add_help_option=False)(train.fit)
for _verb in (train.validate, train.test, train.predict, estimate.estimate):
    app.command(cls=WithSettings)(_verb)
for _command in (
    compare.replay,
    compare.diff,
    checkpoint.export,
    chat.chat,
    pictures.plot,
    pictures.report,
    migrate.migrate,
    environment.plugins,
    pages.skills,
    environment.env,
    doctor.doctor,
    check.check,
    pages.explain,
):
    app.command()(_command)
app.command("plot-lr")(pictures.plot_lr)
app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,  # what follows the script is the script's
    },
    options_metavar="[--nproc N] [--nnodes N ...] [--slurm ...]",
)(launch.launch)

_GROUPS: dict[str, tuple[str, dict[str, Callable[..., None]]]] = {
    "recipes": (
        "Ready runs: list them, show their settings, copy one to change it.",
        {"list": recipes.list_recipes, "show": recipes.show, "copy": recipes.copy},
    ),
    "config": (
        "Configurations: write one, show where values come from, check them, print their schema.",
        {
            "init": init.init,
            "show": inspection.show,
            "check": inspection.check,
            "schema": inspection.schema,
        },
    ),
    "checkpoint": (
        "Look at checkpoints.",
        {
            "ls": checkpoint.ls,
            "verify": checkpoint.verify,
            "show": checkpoint.show,
            "consolidate": checkpoint.consolidate,
        },
    ),
}
_groups = {name: _group(text, needs_command=name != "recipes") for name, (text, _) in _GROUPS.items()}
for _name, (_, _members) in _GROUPS.items():
    for _member, _function in _members.items():
        _takes_settings = _function in (inspection.show, inspection.check)
        _groups[_name].command(_member, cls=WithSettings if _takes_settings else None)(_function)
    app.add_typer(_groups[_name], name=_name)


@_groups["recipes"].callback(invoke_without_command=True)
def _recipes(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        recipes.list_recipes()


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
    with short_tracebacks():
        try:
            typer.main.get_command(app)()  # app() replaces sys.excepthook
        except PacelineError as error:
            sys.exit(f"error: {with_notes(error)}")
        except KeyboardInterrupt:
            sys.exit(130)
        except OSError as error:
            if users_line(error) is not None:
                shorten_traceback(error)
                raise
            sys.exit(
                f"error: {' '.join(str(error).split())}\n  fix: make room there, or get the right to it"
            )
        except Exception as error:  # of a user's code
            shorten_traceback(error)
            raise


if __name__ == "__main__":
    main()
