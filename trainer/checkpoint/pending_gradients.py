"""Gradients that wait for ``optimizer.step()`` under manual optimization, as tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ...strategies.tensors.sharding import is_sharded

_INDICES, _VALUES = "/indices", "/values"


def pending_gradients(module: nn.Module, rank: int) -> dict[str, Tensor]:
    """The gradients of a module by owner and name; a sparse one is its indices and its values.

    Args:
        module: Its parameters may have gradients.
        rank: The owner of gradients that are not reduced yet; ``"all"`` owns those that are sharded.
    """
    found: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        gradient = parameter.grad
        if gradient is None:
            continue
        where = f"{'all' if is_sharded(gradient) else rank}.{name}"
        if gradient.layout is torch.sparse_coo:
            whole = gradient.coalesce()
            found |= {where + _INDICES: whole.indices(), where + _VALUES: whole.values()}
        else:
            found[where] = gradient
    return found


def load_gradients(module: nn.Module, tensors: Mapping[str, Tensor], divisor: int) -> None:
    """Give a module the gradients that ``pending_gradients`` gave.

    Args:
        module: One with the same parameters.
        tensors: Of this rank, or of all ranks that wrote.
        divisor: 1; of other ranks how many they were: each takes the mean of their gradients.
    """
    parameters = dict(module.named_parameters())
    for full, value in tensors.items():
        if full.endswith(_VALUES):
            continue
        owner, _, name = full.removesuffix(_INDICES).partition(".")
        parameter = parameters[name]
        value = value.to(parameter.device)
        if full.endswith(_INDICES):
            values = tensors[full.removesuffix(_INDICES) + _VALUES].to(parameter.device)
            value = torch.sparse_coo_tensor(value, values, parameter.shape, check_invariants=True)
        if owner != "all" and divisor != 1:
            value = value / divisor
        parameter.grad = value if parameter.grad is None else parameter.grad + value
