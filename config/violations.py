"""What pydantic finds wrong, as our problems: by dotted key, one line each, with secrets masked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ..errors import PacelineError, nearest, report, shown
from ..other_trainers.fine_tuning import setting_here
from ..trainer.utils.secrets import masked

Problems = list[tuple[str, str]]
"""(dotted key, what is wrong) of each value that is not right."""


def report_of(lines: Iterable[str]) -> PacelineError:
    """One error for all problems of a configuration.

    Args:
        lines: A line for each.
    """
    return report("config", list(lines), code="invalid-settings", noun="setting")


def violations(
    error: ValidationError,
    given: Mapping[str, Any],
    keys_beside: Callable[[Sequence[str]], Sequence[str]] = lambda _: (),
) -> Problems:
    """The problems of values that a model refused.

    Args:
        error: Its error.
        given: What it was given.
        keys_beside: The keys that a mapping may have, by the path of one that it may not.
    """
    found: dict[str, list[str]] = {}
    heads: dict[str, str] = {}
    for one in error.errors():
        path = list(_path(one, given))
        key = ".".join(path)
        if not path:
            heads[key] = _allowed(one)
        elif one["type"] == "extra_forbidden":
            heads[key] = "no such key" + _hint(path, keys_beside(path))
        elif one["type"] == "missing" and not isinstance(one["loc"][-1], int):
            heads[key] = "this key is needed"
        else:
            name = next((part for part in reversed(path) if not part.isdigit()), "")
            heads[key] = f"got {shown(masked(one['input'], name), 60)}; allowed: "
            found.setdefault(key, []).append(_allowed(one))
    return [(key, head + ", or ".join(dict.fromkeys(found.get(key, [])))) for key, head in heads.items()]


def _hint(path: Sequence[str], known: Sequence[str]) -> str:
    name = path[-1]
    theirs = setting_here(name, frozenset(known)) if len(path) == 1 else ""
    if theirs:
        return f"; {theirs}"
    first, _, rest = name.partition(".")
    if rest and first in known:
        return f"; in a file it is {first}: {{{rest}: ...}}"
    meant = nearest(name, known)
    return f"; did you mean {meant}?" if meant else ""


def _path(error: Any, given: Any) -> Iterator[str]:
    """The keys of what is wrong. pydantic's location also has the types of a union, which are no keys."""
    location = error["loc"]  # empty where a model refused its values as a whole
    for part in location:
        is_key = isinstance(given, Mapping) and part in given
        is_item = isinstance(given, (list, tuple)) and isinstance(part, int) and part < len(given)
        if is_key or is_item:
            given = given[part]
            yield str(part)
        elif error["type"] == "missing" and part == location[-1] and isinstance(part, str):
            yield part


def _allowed(error: Any) -> str:
    """What pydantic says is allowed, in our form."""
    if error["type"] == "missing":
        return f"at least {error['loc'][-1] + 1} items"
    if error["type"] in ("dict_type", "mapping_type", "model_type", "model_attributes_type"):
        return (
            "a mapping, no list: leave the dashes out" if isinstance(error["input"], list) else "a mapping"
        )
    if error["type"] == "string_type" and isinstance(error["input"], (int, float)):
        return "a text: write it in quotes"
    message: str = error["msg"].partition(", unable to")[0]
    more = ", as {class: ..., ARGUMENT: ...}" if error["type"] == "is_instance_of" else ""
    return message.removeprefix("Input should be ").removeprefix("Value error, ") + more


def booleans_as_numbers(given: Any, kept: Any, path: str = "") -> Problems:
    """True and false that pydantic took for 1 and 0.

    Example:
        >>> booleans_as_numbers({"epochs": True, "shuffle": True}, {"epochs": 1, "shuffle": True})
        [('epochs', 'got True; allowed: a number')]
    """
    if isinstance(given, bool):
        is_number = isinstance(kept, (int, float)) and not isinstance(kept, bool)
        return [(path, f"got {given}; allowed: a number")] if is_number else []
    if isinstance(given, Mapping):
        parts = [(str(name), one, _part(kept, name)) for name, one in given.items()]
    elif isinstance(given, list) and isinstance(kept, (list, tuple)) and len(given) == len(kept):
        parts = [(str(n), one, other) for n, (one, other) in enumerate(zip(given, kept, strict=True))]
    else:
        return []
    return [
        problem
        for name, one, other in parts
        for problem in booleans_as_numbers(one, other, f"{path}.{name}" if path else name)
    ]


def _part(kept: Any, name: Any) -> Any:
    if isinstance(kept, Mapping):
        return kept.get(name)
    return getattr(kept, str(name), None) if hasattr(kept, "__dict__") else None
