"""Objects by import path: ``package.module:Name``, ``package.module.Name`` or ``file.py:Name``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import PacelineError, nearest

PATTERN = r"[\w./\\-]+:[A-Za-z_][\w.]*|[A-Za-z_]\w*(\.[A-Za-z_]\w*)+"
"""An import path as a regular expression."""
FORMS = "package.module:Name, package.module.Name, or file.py:Name"
"""What an import path looks like, for messages."""
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_PATH = re.compile(PATTERN)


def is_import_path(text: Any) -> bool:
    """Whether this is written like an import path: with a colon, or with dots between names.

    Example:
        >>> is_import_path("my_project:Net"), is_import_path("torch.optim.AdamW"), is_import_path("ema")
        (True, True, False)
    """
    return isinstance(text, str) and _PATH.fullmatch(text) is not None


def import_object(path: str) -> Any:
    """The object at an import path. Modules of the current folder can be imported, as in a script.

    What an imported module itself raises is not changed.

    Args:
        path: In one of ``FORMS``.

    Raises:
        PacelineError: for another form, and for a module or a name that does not exist.

    Example:
        >>> import_object("torch.optim:SGD").__name__
        'SGD'
    """
    if not is_import_path(path):
        raise PacelineError("this is no import path", code="import-path-wrong", got=path, allowed=FORMS)
    _find_modules_here()
    place, colon, name = path.rpartition(":")
    if colon and place.endswith(".py"):
        return _attribute(import_file(Path(place)), name, path)
    if colon and not _MODULE.fullmatch(place):
        fix = f"{place}.py:{name}" if Path(f"{place}.py").is_file() else None
        raise PacelineError(
            "this is no import path", code="import-path-wrong", got=path, allowed=FORMS, meant=fix
        )
    if colon:
        return _attribute(import_module(place), name, path)
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        prefix = ".".join(parts[:end])
        if is_module(prefix):
            return _attribute(import_module(prefix), ".".join(parts[end:]), path)
    return import_module(parts[0])  # which raises


def import_module(name: str) -> ModuleType:
    """A module by its dotted name.

    Raises:
        PacelineError: where there is none of that name.
    """
    _find_modules_here()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise  # it exists, and imports something that does not
        raise PacelineError(
            f"there is no module {error.name!r}",
            code="import-path-wrong",
            got=name,
            allowed=f"modules that are installed, and those in {os.getcwd()}",
            meant=nearest(name, [file.stem for file in Path.cwd().glob("*.py")]),
        ) from None


def import_file(file: Path, named_at: str | None = None) -> ModuleType:
    """A Python file as a module of its name; files beside it can be imported, as in a script.

    Args:
        file: The file.
        named_at: The place in a config that names it, for messages.

    Raises:
        PacelineError: where there is no such file, and where its name is that of another module.
    """
    file = file.expanduser().resolve()
    if not file.is_file():
        beside = [str(one.name) for one in file.parent.glob("*.py")] if file.parent.is_dir() else []
        near = nearest(file.name, beside)
        where = str(file) if named_at is None else f"{file}, named at {named_at}"
        raise PacelineError("there is no such file", code="file-not-found", where=where, meant=near)
    name = re.sub(r"\W", "_", file.stem)
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return loaded
    if loaded is not None or name in sys.stdlib_module_names:
        raise PacelineError(
            f"a file called {file.name} would take the place of the module {name!r}",
            code="import-path-wrong",
            where=str(file),
            fix="rename the file",
        )
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _find_modules_here() -> None:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def is_module(module: str) -> bool:
    """Whether a module of this name can be imported; the packages above it are imported for that."""
    _find_modules_here()
    if sys.modules.get(module) is not None:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # its parent is no package
        return False


def _attribute(module: ModuleType, dotted: str, path: str) -> Any:
    found: Any = module
    for name in dotted.split("."):
        if not hasattr(found, name):
            known = [one for one in dir(found) if not one.startswith("_")]
            where = getattr(found, "__name__", type(found).__name__)
            meant = nearest(name, known)
            raise PacelineError(
                f"{where} has no {name!r}",
                code="import-path-wrong",
                got=path,
                meant=path.removesuffix(dotted) + dotted.replace(name, meant) if meant else None,
            )
        found = getattr(found, name)
    return found


@dataclass(frozen=True)
class OfLibrary:
    """A class of a library that may not be installed.

    Args:
        path: Its import path.
        install: What ``pip install`` is given for it.
    """

    path: str
    install: str

    def load(self) -> Any:
        """The class.

        Raises:
            PacelineError: where the library is not installed.
        """
        try:
            return import_object(self.path)
        except PacelineError:
            if is_module(self.path.partition(":")[0]):
                raise
            library = self.path.partition(".")[0]
            raise PacelineError(
                f"{library} is not installed", code="package-missing", fix=f"pip install {self.install}"
            ) from None
