"""``paceline fit``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from ..errors import PacelineError, nearest
from ..recipes import RECIPES


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
    from ..trainer.config.recipe_config import load_config

    module = import_module(f"paceline.recipes.{RECIPES[recipe][0]}")
    module.fit(load_config(module.Config, module.PRESETS, config, settings or []), resume)
