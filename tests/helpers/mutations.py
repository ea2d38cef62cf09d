"""Changes to plain data as an attacker or a bug would make them: types, numbers, depth, names."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from paceline.errors import shown

Place = tuple[Any, Any]


DEEP = "<deep>"


def deep(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def as_json(value: Any) -> str:
    """The text of plain data, with lists too deep for ``json.dumps`` in the place of ``DEEP``."""
    return json.dumps(value, indent=1).replace(json.dumps(DEEP), "[" * 50_000 + "]" * 50_000)


def odd_values() -> list[Any]:
    """Values that no checkpoint holds at the place they are put."""
    kinds = ("tensor", "array", "tuple", "dict", "counter", "bytes", "apart", "os.system", 3, None)
    encoded: list[Any] = [{"__kind__": kind} for kind in kinds]
    encoded += [
        {"__kind__": "tensor", "dtype": "load", "shape": [1], "data": "AAAA"},
        {"__kind__": "tensor", "dtype": "float32", "shape": [10**12], "data": ""},
        {"__kind__": "tensor", "dtype": "float32", "shape": [-1], "data": "AAAAAA=="},
        {"__kind__": "array", "dtype": "O", "shape": [1], "data": "AAAAAAAAAAA="},
        {"__kind__": "array", "dtype": "(100000,100000)f8", "shape": [1], "data": "AAAA"},
        {"__kind__": "array", "dtype": "<f4", "shape": "x", "data": "***"},
        {"__kind__": "dict", "items": [[[], 1]]},
        {"__kind__": "tuple", "items": 3},
        {"__kind__": "counter", "items": [["a"]]},
    ]
    plain = [None, True, -1, 2**63, 10**400, 0.5, float("nan"), float("inf"), "", "x", "\ud800", "../../x"]
    return [*plain, "x" * 10_000, [], [[]], {}, {"a": {}}, [1, "a", None], deep(150), DEEP, *encoded]


def places(value: Any) -> Iterator[Place]:
    """Every (container, key) below a value."""
    pairs = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, item in list(pairs):
        yield value, key
        yield from places(item)


def mutated(value: Any, chance: random.Random) -> tuple[Any, str]:
    """A copy with one thing changed, and what was."""
    found = copy.deepcopy(value)
    chosen = list(places(found))
    by_container = {id(container): container for container, _ in chosen}
    # Evenly over containers: one of 600 numbers is as likely as one of two names.
    container = chance.choice(list(by_container.values()))
    key = chance.choice([key for owner, key in chosen if owner is container])
    how = chance.choice(["replace", "replace", "replace", "remove", "rename", "repeat"])
    if how == "remove":
        del container[key]
    elif how == "rename" and isinstance(container, dict):
        container[f"{key}?"] = container.pop(key)
    elif how == "repeat" and isinstance(container, list):
        container.append(copy.deepcopy(container[key]))
    else:
        how, new = "replace", chance.choice(odd_values())
        container[key] = new
        return found, f"{key!r} replaced by {shown(new, 60)}"
    return found, f"{how} {key!r}"
