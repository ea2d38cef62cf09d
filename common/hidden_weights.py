"""Weights that a module holds where torch does not find them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch import Tensor, nn

HIDDEN_CURE = "use nn.ModuleList, nn.ModuleDict or nn.Parameter"
_DEPTH, _ITEMS = 3, 1000
"""How far an attribute is looked into: it may hold all of a data set."""


def hidden_parameters(module: nn.Module) -> list[str]:
    """Attributes with trainable weights that ``parameters()`` does not give: they would never change."""
    known = {id(p) for p in module.parameters()}
    hidden = hidden_by_attribute(module).items()
    return [place for place, weights in hidden if any(id(w) not in known for w in weights)]


def hidden_by_attribute(module: nn.Module, objects: bool = False) -> dict[str, list[Tensor]]:
    """The trainable weights in plain attributes of a module and its submodules, by the attribute's name.

    Args:
        module: Of any kind.
        objects: Look into attributes of plain objects too.
    """
    found = {}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            weights = [] if name.startswith("_") else list(_weights(value, objects=objects))
            if weights:
                found[".".join(filter(None, (path, name)))] = weights
    return found


def _weights(value: Any, depth: int = 0, objects: bool = False) -> Iterator[Tensor]:
    """The weights in an attribute: a tensor, or layers and parameters in lists and mappings."""
    if isinstance(value, Tensor):
        if value.requires_grad and value.is_leaf:
            yield value
    elif isinstance(value, nn.Module) and depth:  # by itself it was hidden on purpose
        yield from (p for p in value.parameters() if p.requires_grad)
    elif isinstance(value, (dict, list, tuple)) and depth < _DEPTH:
        inside = value.values() if isinstance(value, dict) else value
        for one in islice(inside, _ITEMS):
            yield from _weights(one, depth + 1, objects)
    elif (
        objects
        and depth < _DEPTH
        and not isinstance(value, (nn.Module, type))
        and hasattr(value, "__dict__")
    ):
        yield from _weights(vars(value), depth + 1, objects)
