"""Checksums of tensors, and of samples: tell values from other values of the same shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...common.checksums import crc32
from ...strategies.tensors.sharding import is_sharded

_NUMBERS = 8
_WHOLE = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


def checksum_of(tensor: Tensor, value: int = 0) -> int:
    """The CRC-32 of a tensor's bytes; ``value`` is that of what came before."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return crc32(plain.view(torch.uint8).numpy(), value)


def exact_parts_of(item: Any, value: int = 0) -> int:
    """The checksum of a computed sample, without what may differ from machine to machine.

    Whole numbers, booleans and texts count, and types, shapes and dtypes; of fractions and of other objects
    nothing else does.
    """
    is_array = isinstance(item, (Tensor, np.ndarray))
    kind = f"{item.dtype} {tuple(item.shape)}" if is_array else type(item).__name__
    value = crc32(kind.encode(), value)
    if isinstance(item, (list, tuple, Mapping)):
        for part in item.items() if isinstance(item, Mapping) else item:
            value = exact_parts_of(part, value)
    elif isinstance(item, (bool, int, str, bytes, np.integer)):
        value = crc32(repr(item).encode(), value)
    elif isinstance(item, np.ndarray) and item.dtype.kind in "biu":
        value = crc32(np.ascontiguousarray(item).tobytes(), value)
    elif isinstance(item, Tensor) and item.dtype in _WHOLE and item.layout is torch.strided:
        value = checksum_of(item, value)
    return value


def sample_of_weights(module: nn.Module) -> int:
    """A checksum of the first numbers of each parameter: shows whether a script builds the same again."""
    value = 0
    for parameter in module.parameters():
        if not parameter.is_meta and not is_sharded(parameter) and type(parameter.data) is Tensor:
            value = checksum_of(parameter.detach().reshape(-1)[:_NUMBERS], value)
    return value
