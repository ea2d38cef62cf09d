"""``paceline config show | check | schema``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ..output import JSON, print_json, print_table, shown_value
from ..targets import CONFIG, SETTINGS, TARGET, load_target, recipe_of_target


def show(target: TARGET, settings: SETTINGS = None, config: CONFIG = None, as_json: JSON = False) -> None:
    """Show every value of a configuration, and where it comes from."""
    loaded = load_target(target, config, settings)
    loaded.checked()
    from ...config.describe import values_of

    values = values_of(loaded)
    if as_json:
        print_json([asdict(one) for one in values])
    else:
        rows = [(one.key, shown_value(one.value), one.source) for one in values]
        print_table(("key", "value", "from"), rows)


def check(target: TARGET, settings: SETTINGS = None, config: CONFIG = None, as_json: JSON = False) -> None:
    """Check a configuration, without training: the exit code is 1 where something is not right."""
    loaded = load_target(target, config, settings)
    if as_json:
        problems = [
            {"key": key, "from": loaded.settings.place(key), "problem": text}
            for key, text in loaded.problems
        ]
        print_json({"valid": not problems, "problems": problems})
        raise typer.Exit(1 if problems else 0)
    loaded.checked()
    typer.echo("no problem found")


def schema(
    target: Annotated[
        str | None,
        typer.Argument(help="As of fit; without one the schema of a config that names a module."),
    ] = None,
) -> None:
    """Print the JSON Schema of config files, for editors."""
    from ...config.module_config import MODULE_RECIPE
    from ...config.schema import schema_of

    print_json(schema_of(MODULE_RECIPE if target is None else recipe_of_target(target)))
