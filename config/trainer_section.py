"""The section ``trainer`` of a config: the Trainer's arguments, with the objects that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..plugins import names as installed
from ..trainer.config.built_in import make
from .classes import ClassSpec, attempt, read_class
from .importing import is_import_path
from .names import slots
from .violations import Problems

_ONE = ("strategy", "precision", "profile")
_SEVERAL = ("callbacks", "loggers")


def read_trainer(
    values: Mapping[str, Any], path: str, problems: Problems, builds: bool = True
) -> dict[str, Any]:
    """The arguments with objects built; those that are not right are missing, and in ``problems``.

    Args:
        values: Arguments of the Trainer. A callback, logger, strategy or precision is a name, an import
            path, or a mapping with its ``class`` and arguments.
        path: The dotted key of the section.
        problems: Takes what is wrong.
        builds: Whether to build objects of other packages and the user's too. Without them, which are then
            missing, it is a check that calls nothing that a file can choose.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        here = f"{path}.{name}"
        if name in _ONE and _is_class(value):
            kept = [_object(name, value, here, problems, builds)]
        elif name in _SEVERAL and not isinstance(value, bool) and value is not None:
            several = value if isinstance(value, list) else [value]
            made = [
                _one_of(name, one, f"{here}.{number}", problems, builds)
                for number, one in enumerate(several)
            ]
            kept = [[one for one in made if one is not None]]
        else:
            kept = [value]
        if kept[0] is not None or value is None:
            found[name] = kept[0]
    return found


def merged_callbacks(defaults: Sequence[Any], given: Any) -> list[Any]:
    """A recipe's callbacks with those of its config, which replace others of their class.

    Args:
        defaults: The recipe's.
        given: The config's.
    """
    added = list(given) if isinstance(given, (list, tuple)) else [given]
    kept = [
        one
        for one in defaults
        if not any(type(one) is type(other) and one.state_key == other.state_key for other in added)
    ]
    return [*kept, *added]


def _is_class(value: Any) -> bool:
    return isinstance(value, Mapping) or is_import_path(value)


def _one_of(name: str, value: Any, path: str, problems: Problems, builds: bool) -> Any:
    """A callback or logger."""
    is_plugin = isinstance(value, str) and value in installed(name)
    if is_plugin:
        return attempt(lambda: make(name, value), path, problems) if builds else None
    turns_off = isinstance(value, str) and value.startswith("-")  # a logger of those that are on by default
    if turns_off or not isinstance(value, (str, Mapping)):
        return value
    return _object(name, value, path, problems, builds)


def _object(name: str, value: Any, path: str, problems: Problems, builds: bool) -> Any:
    """The object; what its constructor raises is a problem of its key."""
    spec = read_class(value, slots()[name], path, problems)
    if spec is None or not (builds or _is_ours(spec)):
        return None
    return attempt(spec.build, path, problems)


def _is_ours(value: Any) -> bool:
    """Whether only classes of this package are called to build this: they check and keep arguments."""
    if isinstance(value, ClassSpec):
        root = __package__.partition(".")[0]
        ours = getattr(value.target, "__module__", "").partition(".")[0] == root
        return ours and all(map(_is_ours, value.arguments.values()))
    if isinstance(value, (dict, list)):
        return all(map(_is_ours, value.values() if isinstance(value, dict) else value))
    return True
