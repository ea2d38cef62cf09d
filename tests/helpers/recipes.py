"""A recipe of a test, by its import path."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.config.load import load


def loaded(config: Any, presets: dict[str, Any], file: Path, overrides: Sequence[str] = ()) -> Any:
    """The checked settings of a recipe with this ``Config``, from a file and ``key=value``."""
    module: Any = ModuleType("recipe_of_a_test")
    module.Config, module.PRESETS, module.build = config, presets, print
    sys.modules[module.__name__] = module
    try:
        return load(module.__name__, [file], overrides, {module.__name__: module.__name__}).checked()
    finally:
        del sys.modules[module.__name__]
