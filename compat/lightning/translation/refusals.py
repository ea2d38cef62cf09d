"""What cannot be translated: a sentence that names the way here, before anything is computed."""

from __future__ import annotations

from typing import Never

_EXPLAINED_AT = "docs/migration/from-lightning.md lists what this package has"


def refuse_import(module: str, name: str, here: dict[str, str]) -> Never:
    """For ``__getattr__`` of a module: a name that it does not have.

    Raises:
        ImportError: for one of ``here``, with what to use: ``from module import name`` shows it.
        AttributeError: for others, as ``hasattr`` expects it.
    """
    if name in here and not name.startswith("__"):
        raise ImportError(f"{module} has no {name}; use {here[name]}", name=name)
    raise AttributeError(f"module {module!r} has no attribute {name!r}; {_EXPLAINED_AT}")
