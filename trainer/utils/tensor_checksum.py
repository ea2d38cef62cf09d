"""Checksums of tensors: tell values from other values of the same shape."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor, nn

from ...strategies.sharding import is_sharded

_NUMBERS = 8


def checksum_of(tensor: Tensor, value: int = 0) -> int:
    """The CRC-32 of a tensor's bytes; ``value`` is that of what came before."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return zlib.crc32(plain.view(torch.uint8).numpy().tobytes(), value)


def sample_of_weights(module: nn.Module) -> int:
    """A checksum of the first numbers of each parameter: shows whether a script builds the same again."""
    value = 0
    for parameter in module.parameters():
        if not parameter.is_meta and not is_sharded(parameter):
            value = checksum_of(parameter.detach().reshape(-1)[:_NUMBERS], value)
    return value
