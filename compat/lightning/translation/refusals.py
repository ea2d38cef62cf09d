"""What cannot be translated: a sentence that names the way here, when it is used."""

from __future__ import annotations

from typing import Any

from ....errors import PacelineError

_EXPLAINED_AT = "docs/migration/from-lightning.md lists what this package has"


class _Refused(type):
    """Of classes that can be imported, and compared with, and nothing more."""

    module: str
    way: str

    def __init__(cls, name: str, bases: tuple[type, ...], names: dict[str, Any]) -> None:
        super().__init__(name, bases, names)
        for base in bases:  # a subclass
            base()

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise PacelineError(f"{cls.module} has no {cls.__name__}", code="not-offered", fix=f"use {cls.way}")


def refuse_import(module: str, name: str, here: dict[str, str]) -> Any:
    """For ``__getattr__`` of a module: a name that it does not have.

    Returns:
        For one of ``here`` a class whose use raises a PacelineError with what to use in its place: programs
        import more than they call.

    Raises:
        ImportError: for a constant of ``here``: what follows from its value cannot be known.
        AttributeError: for others, as ``hasattr`` expects it.
    """
    if name not in here or name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}; {_EXPLAINED_AT}")
    if name.isupper():
        raise ImportError(f"{module} has no {name}; use {here[name]}", name=name)

    return _Refused(name, (), {"__module__": module, "module": module, "way": here[name]})
