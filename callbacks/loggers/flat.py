"""A configuration as one level of names and scalars, for what takes no nested one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Scalar = str | int | float | bool


def flat_config(config: Mapping[str, Any]) -> dict[str, Scalar]:
    """Every value of a nested mapping under its dotted name; None is omitted, a list is its text.

    Example:
        >>> flat_config({"module": {"hparams": {"lr": 0.1, "widths": [8, 8], "act": None}}})
        {'module.hparams.lr': 0.1, 'module.hparams.widths': '[8, 8]'}
    """
    found: dict[str, Scalar] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": one for inner, one in flat_config(value).items()}
        elif value is not None:
            found[str(name)] = value if isinstance(value, (str, int, float, bool)) else str(value)
    return found
