"""A few samples' checksum: tells data from other data of the same kind and length."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .seeded_loader import reads_plainly

_SAMPLES = 8


def content_of(dataset: Any) -> dict[str, str]:
    """The checksum of some samples of data that lies in memory; empty for data that is computed."""
    if not reads_plainly(dataset) or not len(dataset):
        return {}
    last, parts = len(dataset) - 1, min(_SAMPLES, len(dataset))
    value = 0
    for number in range(parts):
        value = _add(dataset[last * number // max(parts - 1, 1)], value)
    return {"content": f"{value:08x}"}


def checksum_of(tensor: Tensor, value: int = 0) -> int:
    """The CRC-32 of a tensor's bytes; ``value`` is that of what came before."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return zlib.crc32(plain.view(torch.uint8).numpy().tobytes(), value)


def sample_of_weights(module: nn.Module) -> int:
    """A checksum of the first numbers of each parameter: tells whether a script builds the same again."""
    value = 0
    for parameter in module.parameters():
        if not parameter.is_meta and not hasattr(parameter, "to_local"):
            value = checksum_of(parameter.detach().reshape(-1)[:_SAMPLES], value)
    return value


def _add(item: Any, value: int) -> int:
    if isinstance(item, (list, tuple)):
        for part in item:
            value = _add(part, value)
    elif isinstance(item, dict):
        for key in item:
            value = _add(item[key], value)
    elif isinstance(item, Tensor):
        if item.layout is torch.strided and not item.is_quantized:
            value = checksum_of(item, value)
    elif isinstance(item, np.ndarray) and item.dtype.kind in "biuf":
        value = zlib.crc32(np.ascontiguousarray(item).tobytes(), value)
    elif isinstance(item, (bool, int, float, str)):
        value = zlib.crc32(repr(item).encode(), value)
    return value
