"""Tensors of which each rank holds a part: DTensors, and what DeepSpeed partitions."""

from __future__ import annotations

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
