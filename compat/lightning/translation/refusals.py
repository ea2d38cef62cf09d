"""What cannot be translated: a sentence that names the way here, before anything is computed."""

from __future__ import annotations

from typing import Never

_EXPLAINED_AT = "docs/migration/from-lightning.md lists what this package has"


def refuse_import(module: str, name: str, here: dict[str, str]) -> Never:
    """For ``__getattr__`` of a module: a name that it does not have.

    Raises:
        AttributeError: for names of Python's own.
        ImportError: for others, with what to use.
    """
    if name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    way = here.get(name)
    raise ImportError(
        f"{module} has no {name}" + (f"; use {way}" if way else f"; {_EXPLAINED_AT}"), name=name
    )
