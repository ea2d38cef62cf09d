"""The terms that a loss is the sum of, and which of them move any weight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

_SUMS = ("AddBackward", "SubBackward")
_SCALINGS = ("MulBackward", "DivBackward", "NegBackward")
_MOST_NODES, _MOST_TERMS = 20_000, 12


def terms_of(loss: Tensor) -> list[Any]:
    """The nodes of the graph whose results, times numbers, add up to a loss."""
    found: list[Any] = []
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        inner = [one for one, _ in node.next_functions if one is not None]
        is_scaled = node.name().startswith(_SCALINGS) and len(inner) == 1
        if node.name().startswith(_SUMS) or is_scaled:
            waiting += inner
        elif node not in found:
            found.append(node)
    return found


def _inputs_of(node: Any) -> set[Any]:
    """All nodes that a node's result is made of."""
    seen, waiting = {node}, [node]
    while waiting and len(seen) < _MOST_NODES:
        for inner, _ in waiting.pop().next_functions:
            if inner is not None and inner not in seen:
                seen.add(inner)
                waiting.append(inner)
    return seen


def idle_terms(loss: Tensor, module: nn.Module) -> Iterator[tuple[int, Any]]:
    """Terms of a loss whose gradient is exactly 0 in all weights, with their numbers, from 1.

    Args:
        loss: With its graph, which is kept.
        module: Whose trainable parameters are looked at.
    """
    weights = [one for one in module.parameters() if one.requires_grad]
    terms = terms_of(loss)
    for number, term in enumerate(terms if 1 < len(terms) <= _MOST_TERMS else (), 1):
        others = [one for one in terms if one is not term]
        inputs = _inputs_of(term)
        if len(inputs) >= _MOST_NODES or any(one in inputs for one in others):
            continue
        with ExitStack() as hooks:
            for other in others:
                hooks.callback(other.register_prehook(_to_zero).remove)
            found = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
        if not any(bool(one.any()) for one in found if one is not None):
            yield number, term


def _to_zero(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if one is None else torch.zeros_like(one) for one in gradients)
