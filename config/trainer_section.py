"""The section ``trainer`` of a config: the Trainer's arguments, with the objects that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import PacelineError
from ..trainer.config.built_in import make
from .classes import ClassSpec, Problems, one_line, read_class
from .importing import is_import_path
from .names import slots

_ONE = ("strategy", "precision", "profile")
_SEVERAL = ("callbacks", "loggers")


def read_trainer(values: Mapping[str, Any], path: str, problems: Problems) -> dict[str, Any]:
    """The arguments with objects built; those that are not right are missing, and in ``problems``.

    Args:
        values: Arguments of the Trainer. A callback, logger, strategy or precision is a name, an import
            path, or a mapping with its ``class`` and arguments.
        path: The dotted key of the section.
        problems: Takes what is wrong.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        here = f"{path}.{name}"
        if name in _ONE and _is_class(value):
            kept = [_object(name, value, here, problems)]
        elif name in _SEVERAL and not isinstance(value, bool) and value is not None:
            several = value if isinstance(value, list) else [value]
            made = [
                _object(name, one, f"{here}.{number}", problems) if _is_class(one) else one
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
        given: The config's, objects or names.
    """
    several = list(given) if isinstance(given, (list, tuple)) else [given]
    added = [make("callbacks", one) if isinstance(one, str) else one for one in several]
    kept = [
        one
        for one in defaults
        if not any(type(one) is type(other) and one.state_key == other.state_key for other in added)
    ]
    return [*kept, *added]


def _is_class(value: Any) -> bool:
    return isinstance(value, Mapping) or is_import_path(value)


def _object(name: str, value: Any, path: str, problems: Problems) -> Any:
    spec = read_class(value, slots()[name], path, problems)
    return None if spec is None else _build(spec, path, problems)


def _build(spec: ClassSpec, path: str, problems: Problems) -> Any:
    """Build one; what its constructor raises is a problem of its key."""
    try:
        return spec.build()
    except PacelineError as error:
        problems.append((path, one_line(error)))
    except Exception as error:
        problems.append((path, f"{type(error).__name__}: {error}"))
    return None
