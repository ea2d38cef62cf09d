"""A recipe: a module with ``Config``, ``PRESETS`` and ``build``, in the package or in a user's file."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import PacelineError
from .experiment import Experiment
from .run_config import RunConfig

_PARTS = ("Config", "build")


@dataclass(frozen=True)
class Recipe:
    """What there is to know of a recipe.

    Attributes:
        name: As it was asked for; None for a module that a config names.
        config: Its settings.
        build: Makes the experiment.
        presets: Values by name.
        about: Its first line.
    """

    name: str | None
    config: type[RunConfig]
    build: Callable[[Any], Experiment]
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    about: str = ""

    def build_experiment(self, config: Any) -> Experiment:
        """What ``build`` makes of the settings.

        Raises:
            PacelineError: where it is no ``Experiment``.
        """
        found = self.build(config)
        if not isinstance(found, Experiment):
            raise PacelineError(
                f"build of {self.name} must return an Experiment",
                code="recipe-incomplete",
                got=type(found).__name__,
                fix="return Experiment(trainer, module, train=dataloader), from paceline.config",
            )
        return found


def recipe_of(module: ModuleType, name: str) -> Recipe:
    """The recipe that a module is.

    Args:
        module: With ``Config``, a subclass of ``RunConfig``, and ``build``; maybe with ``PRESETS``.
        name: As it was asked for.

    Raises:
        PacelineError: where it is none.
    """
    missing = [part for part in _PARTS if not hasattr(module, part)]
    if missing:
        raise _no_recipe(name, missing)
    config: Any = module.Config
    if not (isinstance(config, type) and issubclass(config, RunConfig)):
        raise PacelineError(
            f"{name}: Config is no subclass of RunConfig",
            code="recipe-incomplete",
            got=config,
            fix="from paceline.config import RunConfig, and class Config(RunConfig)",
        )
    about = (module.__doc__ or "").strip().partition("\n")[0]
    presets = getattr(module, "PRESETS", {})
    return Recipe(name, config, module.build, presets, about)


def _no_recipe(name: str, missing: list[str]) -> PacelineError:
    return PacelineError(
        f"{name} is no recipe: it has no {' and no '.join(missing)}",
        code="recipe-incomplete",
        allowed="a class Config(RunConfig), a function build(config) that returns an Experiment, and "
        "PRESETS, a dict of values by name",
        fix="paceline recipes copy digits my.py writes one; NAME.py:Net names a module in a file",
    )


def check_recipe_file(file: Path, name: str) -> None:
    """See that a Python file has what a recipe has; it is parsed, not run.

    Args:
        file: The file.
        name: As it was asked for.

    Raises:
        PacelineError: where it is no recipe, cannot be read, or is no Python.
    """
    missing = [part for part in _PARTS if part not in _names_in(file)]
    if missing:
        raise _no_recipe(name, missing)


def is_recipe_file(file: Path) -> bool:
    """Whether a Python file has what a recipe has; it is parsed, not run.

    Raises:
        PacelineError: where it cannot be read, or is no Python.
    """
    return set(_PARTS) <= _names_in(file)


def _names_in(file: Path) -> set[str]:
    """The names that a file defines or imports, outside of classes and functions."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PacelineError(
            "the file cannot be read", code="file-unreadable", where=str(file), got=str(error)
        ) from None
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f"{file}:{line}" if line else str(file)
        raise PacelineError(
            "this is no Python", code="file-unreadable", where=where, got=str(error)
        ) from None
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        else:
            names.add(getattr(node, "name", ""))
    return names
