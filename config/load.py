"""From what the user wrote to a checked configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from ..errors import PacelineError, nearest, report, short_tracebacks, shown
from ..trainer.config.validation import find_problems
from ..trainer.utils.secrets import MASK
from .classes import Problems, allowed_by
from .importing import import_file, import_module, is_import_path
from .module_config import MODULE_RECIPE, check_parts
from .recipe import Recipe, recipe_of
from .run_config import RunConfig
from .sources import (
    COMMAND_LINE,
    Override,
    Settings,
    overrides_of,
    read_config_file,
    read_environment,
)
from .trainer_section import read_trainer

_YAML = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Loaded:
    """A configuration that was read, whether or not it is right.

    Attributes:
        recipe: What it is for.
        settings: Values with their places.
        config: The checked values; None where something is not right.
        problems: (dotted key, what is wrong).
    """

    recipe: Recipe
    settings: Settings
    config: Any
    problems: Problems

    @short_tracebacks()
    def checked(self) -> Any:
        """The configuration.

        Raises:
            PacelineError: one report of everything that is not right, each with its key and place.
        """
        if self.problems or self.config is None:
            raise report("config", self.lines(), noun="setting")
        return self.config

    def lines(self) -> list[str]:
        """The problems, a line each."""
        return [f"{_placed(path, self.settings)}: {text}" for path, text in self.problems]


def _placed(path: str, settings: Settings) -> str:
    place = settings.place(path)
    return path if place is None else f"{path} ({place})"


@short_tracebacks()
def load(
    target: str | None,
    files: Sequence[Path] = (),
    settings: Iterable[str] = (),
    recipes: Mapping[str, str] | None = None,
) -> Loaded:
    """Read all sources and check them.

    Args:
        target: A recipe's name, a Python file with one, an import path, a config file, or a run's folder.
        files: Config files, a later one over an earlier one.
        settings: ``key=value`` or ``key+=value``.
        recipes: The modules of recipes by name; those of the package where the command line calls this.

    Raises:
        PacelineError: for what cannot be read.
    """
    recipes = recipes or {}
    overrides = overrides_of(settings)
    is_config = target is not None and _is_config(target)
    if target is not None and is_config:
        files, target = [_config_file(target), *files], None
    elif target is not None and _is_object(target, recipes):
        overrides, target = [(Override("module", target), COMMAND_LINE), *overrides], None
    read = [
        _File(Path(file), *read_config_file(Path(file), is_target=is_config and number == 0))
        for number, file in enumerate(files)
    ]
    named = [file.content.pop("recipe") for file in read if "recipe" in file.content]
    return _configure(_recipe(target, named, recipes), read, overrides)


def configure(recipe: Recipe, files: Sequence[Path] = (), settings: Iterable[str] = ()) -> Loaded:
    """Read the settings of a recipe, as ``load`` does.

    Raises:
        PacelineError: for what cannot be read.
    """
    read = [_File(file, *read_config_file(file)) for file in files]
    return _configure(recipe, read, overrides_of(settings))


class _File(NamedTuple):
    path: Path
    content: dict[str, Any]
    places: dict[str, str]


def _configure(recipe: Recipe, files: Sequence[_File], overrides: list[tuple[Override, str]]) -> Loaded:
    overrides = [*read_environment(), *overrides]
    settings = Settings()
    _add_preset(settings, recipe, files, overrides)
    for file in files:
        settings.add(file.content, file.places, str(file.path))
    for override, place in overrides:
        if override.key != "preset":
            settings.put(override, place)
    return check(recipe, settings)


def _is_config(target: str) -> bool:
    path = Path(target)
    return path.suffix in _YAML or (path.is_dir() and (path / "config.yaml").is_file())


def _config_file(target: str) -> Path:
    path = Path(target)
    return path / "config.yaml" if path.is_dir() else path


def _is_object(target: str, recipes: Mapping[str, str]) -> bool:
    """Whether a target names a class or function, and no recipe."""
    return target not in recipes and ":" in target and is_import_path(target)


def _recipe(target: str | None, named: list[Any], recipes: Mapping[str, str]) -> Recipe:
    asked = [*([target] if target is not None else []), *named]
    for one in asked:
        if one != asked[0]:
            raise PacelineError(
                "recipe names another recipe than the one asked for", got=one, allowed=asked[0]
            )
    return find_recipe(str(asked[0]), recipes) if asked else MODULE_RECIPE


def find_recipe(name: str, recipes: Mapping[str, str]) -> Recipe:
    """The recipe of this name, in this file, or at this import path.

    Args:
        name: Which.
        recipes: The modules of recipes by name.

    Raises:
        PacelineError: where there is none.
    """
    if name in recipes:
        return recipe_of(import_module(recipes[name]), name)
    if name.endswith(".py"):
        return recipe_of(import_file(Path(name)), str(Path(name).absolute()))
    files = [one.name for one in Path.cwd().iterdir() if one.suffix in (".py", *_YAML)]
    near = next((one for one in files if Path(one).stem == name), nearest(name, [*recipes, *files]))
    if is_import_path(name) and near not in files:
        return recipe_of(import_module(name), name)
    raise PacelineError(
        f"there is no recipe {name!r}",
        allowed=", ".join(recipes) + "; a file.py with a recipe, an import path such as my_project:Net, "
        "a config.yaml, or a run's folder",
        meant=near,
    )


def _add_preset(
    found: Settings,
    recipe: Recipe,
    files: Sequence[_File],
    overrides: list[tuple[Override, str]],
) -> None:
    """Begin with the preset that the last source names."""
    chosen: list[tuple[Any, str]] = [
        (file.content.pop("preset"), file.places.get("preset", str(file.path)))
        for file in files
        if "preset" in file.content
    ]
    chosen += [(override.value, place) for override, place in overrides if override.key == "preset"]
    if not chosen:
        return
    name, place = chosen[-1]
    if isinstance(name, (list, dict)):
        raise PacelineError("preset is a name", where=place, got=name)
    known = ["default", *recipe.presets]
    if name not in known:
        raise PacelineError(
            f"preset={name}: there is no such preset",
            where=place,
            allowed=", ".join(known),
            meant=nearest(str(name), known),
        )
    found.add(recipe.presets.get(name, {}), {}, f"preset {name}")


def check(recipe: Recipe, settings: Settings) -> Loaded:
    """Check the values against the recipe's settings, the Trainer's arguments, and named classes."""
    problems: Problems = []
    config: RunConfig | None = None
    values = settings.values
    try:
        config = recipe.config(**values)
        config._recipe = recipe.name
    except ValidationError as error:
        problems += [_problem(recipe.config, one) for one in error.errors()]
    arguments = values.get("trainer") or {}
    if isinstance(arguments, dict):
        built = read_trainer(arguments, "trainer", problems)
        problems += [(f"trainer.{name}", text) for name, text in find_problems(built).problems]
    if recipe is MODULE_RECIPE:
        check_parts(values, problems)
    problems += [(key, _NOT_KEPT) for key in _masked(values)]
    return Loaded(recipe, settings, config, problems)


_NOT_KEPT = "a secret, which the config.yaml of a run does not keep; give it again"


def _masked(values: Any, above: str = "") -> list[str]:
    """The keys of what was masked when a run wrote it."""
    if isinstance(values, dict):
        parts = values.items()
    elif isinstance(values, list):
        parts = enumerate(values)  # type: ignore[assignment]
    else:
        return [above] if values == MASK else []
    return [key for name, one in parts for key in _masked(one, f"{above}.{name}" if above else str(name))]


def _problem(model: type[RunConfig], error: Any) -> tuple[str, str]:
    path = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        meant = nearest(str(error["loc"][-1]), _keys_beside(model, error["loc"]))
        return path, "no such key" + (f"; did you mean {meant}?" if meant else "")
    if error["type"] == "missing":
        return path, "this key is needed"
    return path, f"got {shown(error['input'])}; {allowed_by(error)}"


def _keys_beside(model: Any, location: Sequence[Any]) -> list[str]:
    """The keys that a mapping may have, at this place of a configuration."""
    keys = ["preset", "recipe", "callbacks", "loggers"]
    for part in location[:-1]:
        field = model.model_fields.get(part) if hasattr(model, "model_fields") else None
        model, keys = getattr(field, "annotation", None), []
    return keys + list(getattr(model, "model_fields", {}))
