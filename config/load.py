"""From what the user wrote to a checked configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from ..errors import PacelineError, nearest, short_tracebacks
from ..trainer.config.validation import find_problems
from ..trainer.run.numbering import numbered
from ..trainer.utils.secrets import MASK
from .class_settings import check_class_settings
from .importing import import_file, import_module, is_import_path, is_module
from .module_config import MODULE_RECIPE, check_parts
from .recipe import Recipe, check_recipe_file, recipe_of
from .run_config import RunConfig
from .sources import (
    CLASS,
    COMMAND_LINE,
    Override,
    Settings,
    overrides_of,
    read_config_file,
    read_environment,
)
from .trainer_section import read_trainer
from .violations import Problems, booleans_as_numbers, report_of, violations

_YAML = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Loaded:
    """A configuration that was read, whether or not it is right.

    Attributes:
        recipe: What it is for.
        settings: Values with their places.
        config: The checked values; None where something is not right.
        problems: (dotted key, what is wrong).
        run: The folder of the run that the target is, where it is one.
    """

    recipe: Recipe
    settings: Settings
    config: Any
    problems: Problems
    run: Path | None = None

    @short_tracebacks()
    def checked(self) -> Any:
        """The configuration.

        Raises:
            PacelineError: one report of everything that is not right, each with its key and place.
        """
        if self.problems or self.config is None:
            raise report_of(self.lines())
        return self.config

    def lines(self) -> list[str]:
        """The problems, a line each."""
        return [f"{_placed(path, self.settings)}: {text}" for path, text in self.problems]


def _placed(path: str, settings: Settings) -> str:
    if not path:  # of the configuration as a whole
        return "config"
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
    names: list[_Named] = []
    class_of_target: list[tuple[Override, str]] = []
    run: Path | None = None
    read = [_File(Path(file), *read_config_file(Path(file))) for file in files]
    if target is not None and _is_config(target):
        file = _config_file(target)
        read.insert(0, _File(file, *read_config_file(file, is_target=True)))
        run = file.parent if (file.parent / "env.json").is_file() else None
    elif target is not None and _is_object(target, recipes):
        class_of_target = [(Override("module", {CLASS: target}), COMMAND_LINE)]
    elif target is not None:
        names.append(_Named(target, None))
    for one in read:
        if "recipe" in one.content:
            names.append(_Named(one.content.pop("recipe"), one.places.get("recipe", str(one.path))))
    # Twice: arguments in variables are for this class, and a variable names no other.
    overrides = [*class_of_target, *read_environment(), *class_of_target, *overrides_of(settings)]
    names += [_Named(override.value, place) for override, place in overrides if override.key == "recipe"]
    overrides = [one for one in overrides if one[0].key != "recipe"]
    return replace(_configure(_recipe(names, recipes), read, overrides), run=run)


def recipe_for(target: str, recipes: Mapping[str, str]) -> Recipe:
    """The recipe whose settings a target has.

    Args:
        target: As ``load`` takes it.
        recipes: The modules of recipes by name.

    Raises:
        PacelineError: where there is none.
    """
    if _is_config(target):
        name = read_config_file(_config_file(target), is_target=True).content.get("recipe")
        return MODULE_RECIPE if name is None else find_recipe(str(name), recipes)
    return MODULE_RECIPE if _is_object(target, recipes) else find_recipe(target, recipes)


class _File(NamedTuple):
    path: Path
    content: dict[str, Any]
    places: dict[str, str]


class _Named(NamedTuple):
    """A recipe that is asked for; ``place`` is None for the target."""

    recipe: Any
    place: str | None


def _configure(recipe: Recipe, files: Sequence[_File], overrides: list[tuple[Override, str]]) -> Loaded:
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
    if target in recipes or target.endswith(".py") or not is_import_path(target):
        return False
    return ":" in target or (not is_module(target) and is_module(target.rpartition(".")[0]))


def _recipe(names: Sequence[_Named], recipes: Mapping[str, str]) -> Recipe:
    if not names:
        return MODULE_RECIPE
    first = names[0]
    for one in names:
        if _identity(one.recipe) != _identity(first.recipe):
            raise PacelineError(
                "recipe names another recipe than the one asked for",
                code="conflicting-arguments",
                where=one.place,
                got=one.recipe,
                allowed=str(first.recipe),
            )
    if not isinstance(first.recipe, str):
        raise PacelineError("recipe is a name", code="invalid-value", where=first.place, got=first.recipe)
    return find_recipe(first.recipe, recipes, first.place)


def _identity(recipe: Any) -> Any:
    """What two spellings of one recipe have in common: a file may be named in several ways."""
    is_file = isinstance(recipe, str) and recipe.endswith(".py")
    return Path(recipe).expanduser().resolve() if is_file else recipe


def find_recipe(name: str, recipes: Mapping[str, str], place: str | None = None) -> Recipe:
    """The recipe of this name, in this file, or at this import path.

    Args:
        name: Which.
        recipes: The modules of recipes by name.
        place: Where it is named, for messages.

    Raises:
        PacelineError: where there is none. A script that is no recipe is not run.
    """
    if name in recipes:
        return recipe_of(import_module(recipes[name]), name)
    if name.endswith(".py"):
        file = Path(name).expanduser().resolve()
        if file.is_file():
            check_recipe_file(file, name)
        return recipe_of(import_file(file, place), str(file))
    files = [one.name for one in Path.cwd().iterdir() if one.suffix in (".py", *_YAML)]
    near = next((one for one in files if Path(one).stem == name), nearest(name, [*recipes, *files]))
    if is_import_path(name) and near not in files:
        return recipe_of(import_module(name), name)
    raise PacelineError(
        f"there is no recipe {name!r}",
        code="unknown-recipe",
        where=place,
        allowed=", ".join(recipes) + "; a file.py with a recipe, an import path such as my_project:Net, "
        "a config.yaml, or a run's folder",
        meant=_nearest_run(Path(name)) or near,
        fix="give one of these before the settings" if "=" in name else None,
    )


def _nearest_run(path: Path) -> str | None:
    """The run that a folder may stand for: the newest of a name, or one of a similar name."""
    if path.is_dir():
        runs = [run for _, run in numbered(path) if (run / "config.yaml").is_file()]
        return str(runs[-1]) if runs else None
    parts = path.parts
    for n, part in enumerate(parts):
        above = Path(*parts[:n])
        if not (above / part).exists() and above.is_dir() and n:
            beside = nearest(part, [one.name for one in above.iterdir() if one.is_dir()])
            return None if beside is None else str(above.joinpath(beside, *parts[n + 1 :]))
    return None


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
        raise PacelineError("preset is a name", code="invalid-value", where=place, got=name)
    known = ["default", *recipe.presets]
    if name not in known:
        raise PacelineError(
            f"preset={name}: there is no such preset",
            code="unknown-choice",
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
        config._recipe, config._place = recipe.name, lambda path: _placed(path, settings)
        problems += booleans_as_numbers(values, config)
    except ValidationError as error:
        problems += violations(error, values, lambda path: _keys_beside(recipe.config, path))
    arguments = values.get("trainer") or {}
    if isinstance(arguments, dict):
        built = read_trainer(arguments, "trainer", problems, builds=False)
        problems += [(f"trainer.{name}", text) for name, text in find_problems(built).problems]
    known = {key for key, _ in problems}
    parts: Problems = []
    if recipe is MODULE_RECIPE:
        check_parts(values, parts)
    else:
        check_class_settings(recipe.config, values, parts)
    problems += [(key, text) for key, text in parts if key not in known]
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


def _keys_beside(model: Any, location: Sequence[Any]) -> list[str]:
    """The keys that a mapping may have, at this place of a configuration."""
    keys = ["preset", "recipe", "callbacks", "loggers"]
    for part in location[:-1]:
        field = model.model_fields.get(part) if hasattr(model, "model_fields") else None
        model, keys = getattr(field, "annotation", None), []
    return keys + list(getattr(model, "model_fields", {}))
