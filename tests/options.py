"""Writes ``options.txt``: every option that users can give, so that a change of one shows in a diff.

python tests/options.py
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import paceline
import paceline.callbacks
import paceline.config
import paceline.schedules
import paceline.strategies
import paceline.tools
from paceline.__main__ import app
from paceline.recipes import RECIPES

FILE = Path(__file__).with_name("options.txt")
_VERBS = {
    "Trainer": "fit validate test predict save_checkpoint export log stop",
    "tools": "replay check_invariance find_learning_rate find_batch_size estimate",
    "TrainModule": "of log log_dict load_from_checkpoint",
}


def text() -> str:
    """The content of the file."""
    lines = [*_commands(typer.main.get_command(app), "paceline"), *_classes(), *_verbs(), *_recipes()]
    return "\n".join(lines) + "\n"


def _commands(command: Any, name: str) -> Iterator[str]:
    if hasattr(command, "commands"):
        for inner, one in sorted(command.commands.items()):
            yield from _commands(one, f"{name} {inner}")
        return
    for option in command.params:
        given = "/".join(option.opts) if option.opts[0].startswith("-") else option.name.upper()
        yield f"{name}: {given}"


def _classes() -> Iterator[str]:
    for package in (paceline, paceline.callbacks, paceline.strategies, paceline.schedules, paceline.config):
        for name in sorted(package.__all__):
            one = getattr(package, name)
            if isinstance(one, type) and not issubclass(one, BaseException):
                yield from _call(f"{package.__name__}.{name}", one.__init__)


def _verbs() -> Iterator[str]:
    for cls, verbs in _VERBS.items():
        for verb in verbs.split():
            yield from _call(f"paceline.{cls}.{verb}", getattr(getattr(paceline, cls), verb))


def _call(name: str, function: Any) -> Iterator[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    for parameter in parameters:
        if parameter.name == "self" or parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        yield f"{name}({parameter.name}{default})".split(" at 0x")[0]


def _recipes() -> Iterator[str]:
    from paceline.config.describe import settings_of
    from paceline.config.load import find_recipe

    for name, recipe in RECIPES.items():
        found = find_recipe(f"paceline.recipes.{recipe.module}", {})
        yield from (f"recipe {name}: {one.key} = {one.default}" for one in settings_of(found.config))
        yield from (f"recipe {name}: preset {preset}" for preset in found.presets)


if __name__ == "__main__":
    os.environ["COLUMNS"] = "200"
    FILE.write_text(text())
