"""Recipes of a test by their import path, and what the built-in ones need."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paceline.config.load import load
from paceline.recipes import RECIPES


def loaded(config: Any, presets: dict[str, Any], file: Path, overrides: Sequence[str] = ()) -> Any:
    """The checked settings of a recipe with this ``Config``, from a file and ``key=value``."""
    module: Any = ModuleType("recipe_of_a_test")
    module.Config, module.PRESETS, module.build = config, presets, print
    sys.modules[module.__name__] = module
    try:
        return load(module.__name__, [file], overrides, {module.__name__: module.__name__}).checked()
    finally:
        del sys.modules[module.__name__]


def skip_without_packages(recipe: str) -> None:
    """Skip the test where one of the packages that a built-in recipe needs is not installed."""
    for package in filter(None, RECIPES[recipe].needs.split(", ")):
        pytest.importorskip({"scikit-learn": "sklearn"}.get(package, package))
