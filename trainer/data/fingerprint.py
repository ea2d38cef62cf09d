"""A few samples' checksum, to distinguish data of the same kind and length."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...common.checksums import crc32
from ..utils.tensor_checksum import checksum_of
from .mixtures.mixture import Mixture
from .mixtures.mixture_datasets import is_stream
from .mixtures.mixture_stream import MixtureStream
from .seeded_loader import reads_plainly

_SAMPLES = 8


def content_of(dataset: Any) -> dict[str, str]:
    """The checksum of some samples of data that lies in memory; of a mixture, what it mixes.

    Empty for data that is computed.
    """
    if isinstance(dataset, Mixture):
        return content_of_mixture(dataset)
    if not reads_plainly(dataset) or not len(dataset):
        return {}
    last, parts = len(dataset) - 1, min(_SAMPLES, len(dataset))
    value = 0
    for number in range(parts):
        value = _add(dataset[last * number // max(parts - 1, 1)], value)
    return {"content": f"{value:08x}"}


def content_of_mixture(mixture: Mixture | MixtureStream) -> dict[str, str]:
    """The weights, the seed, and each dataset's type, length and content."""
    found = {"weights": ", ".join(map(str, mixture.weights)), "seed": str(mixture.seed)}
    found["samples in an epoch"] = str(mixture.samples)
    for number, dataset in enumerate(mixture.datasets):
        of_one = {"dataset": type(dataset).__name__}
        if not is_stream(dataset):
            of_one |= {"samples": str(len(dataset))} | content_of(dataset)
        found |= {f"{key} of dataset {number}": value for key, value in of_one.items()}
    return found


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
        value = crc32(np.ascontiguousarray(item).tobytes(), value)
    elif isinstance(item, (bool, int, float, str)):
        value = crc32(repr(item).encode(), value)
    return value
