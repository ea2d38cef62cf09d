"""Loads the job scripts that tests start, for the names in them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_job(path: Path) -> ModuleType:
    """The script as a module of its name, so that what it defines can be pickled; loaded once."""
    loaded = sys.modules.get(path.stem)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
