"""Tensors of which each rank holds a part: DTensors, and what DeepSpeed partitions."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank holds a part only of a parameter, gradient or buffer.

    Args:
        tensor: As it is in the module, of any shape.

    Example:
        >>> import torch
        >>> is_sharded(torch.zeros(2))
        False
    """
    return hasattr(tensor, "to_local") or hasattr(tensor, "ds_id")


def local_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, as a plain one; the tensor itself where it is whole."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def whole(tensor: Tensor) -> Tensor:
    """A DTensor as a plain tensor on every rank; any other as it is. To be called on all ranks."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def shard_held(tensor: Tensor, rank: int, world_size: int) -> tuple[int, int]:
    """Which shard of a tensor a rank holds, and how many there are: ``(0, 1)`` where each rank has all.

    Ranks with the same number hold copies.

    Args:
        tensor: As it is in the module.
        rank: This rank.
        world_size: The number of ranks.
    """
    if hasattr(tensor, "placements"):
        mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
        number, count = 0, 1
        for dimension, placement in enumerate(tensor.placements):
            if not placement.is_replicate():
                size = mesh.size(dimension)
                number, count = number * size + mesh.get_local_rank(dimension), count * size
        return number, count
    return (rank, world_size) if is_sharded(tensor) else (0, 1)
