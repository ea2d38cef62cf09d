"""``paceline recipes list | show | copy``."""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from ..errors import PacelineError, nearest
from ..recipes import RECIPES
from .output import JSON, print_json, print_table
from .targets import recipe_of_target


def list_recipes(as_json: JSON = False) -> None:
    """List the recipes."""
    if as_json:
        print_json([{"name": name} | asdict(recipe) for name, recipe in RECIPES.items()])
        return
    rows = [
        (
            name,
            recipe.figure.preset,
            recipe.figure,
            f"{recipe.figure.seconds} s",
            recipe.needs + (recipe.figure.teacher and f", a run of {recipe.figure.teacher}"),
            recipe.about,
        )
        for name, recipe in RECIPES.items()
    ]
    print_table(("recipe", "CPU preset", "reaches", "in", "needs", ""), rows)


def show(
    name: Annotated[str, typer.Argument(help="A recipe's name, a file.py, or an import path.")],
    as_json: JSON = False,
) -> None:
    """Show a recipe's settings: key, type, default, and what its presets change."""
    recipe = recipe_of_target(name)
    from ..config.describe import settings_of

    settings = list(settings_of(recipe.config))
    if as_json:
        keys = [asdict(one) for one in settings]
        print_json({"name": name, "about": recipe.about, "settings": keys, "presets": recipe.presets})
        return
    typer.echo(f"{name}: {recipe.about}\n")
    print_table(
        ("key", "default", "type", ""), [(one.key, one.default, one.type, one.meaning) for one in settings]
    )
    typer.echo("trainer.*: arguments of the Trainer; callbacks, loggers: lists of names or classes")
    for preset, values in recipe.presets.items():
        typer.echo(f"\npreset={preset}: {' '.join(_flat(values))}")


def _flat(values: object, above: str = "") -> list[str]:
    if isinstance(values, dict):
        return [
            part for key, one in values.items() for part in _flat(one, f"{above}.{key}" if above else key)
        ]
    return [f"{above}={values}"]


def copy(
    name: Annotated[str, typer.Argument(help="A recipe's name.")],
    file: Annotated[Path, typer.Argument(help="The new file, such as my.py.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Copy a recipe's file, to change it: `paceline fit my.py` trains it."""
    if name not in RECIPES:
        raise _unknown(name)
    if file.suffix != ".py":
        raise PacelineError(
            "a recipe is a Python file", code="invalid-value", got=str(file), fix=f"{file.stem}.py"
        )
    if file.exists() and not force:
        raise PacelineError(
            "the file exists", code="file-exists", where=str(file), fix="another name, or --force"
        )
    spec = find_spec(f"paceline.recipes.{RECIPES[name].module}")
    assert spec is not None
    assert spec.origin is not None
    file.parent.mkdir(parents=True, exist_ok=True)
    text = Path(spec.origin).read_text(encoding="utf-8")
    file.write_text(text.replace(f"paceline fit {name}", f"paceline fit {file}"), encoding="utf-8")
    typer.echo(str(file))


def _unknown(name: str) -> PacelineError:
    return PacelineError(
        f"there is no recipe {name!r}",
        code="unknown-recipe",
        allowed=", ".join(RECIPES),
        meant=nearest(name, RECIPES),
    )
