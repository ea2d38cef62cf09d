"""Nested batches: counting their samples, changing their tensors, describing them in one line."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ...common.checksums import crc32

_LISTED = 8


def first_tensor(batch: Any) -> Tensor | None:
    """The first tensor of a nested batch, in the order it is written."""
    if isinstance(batch, Tensor):
        return batch
    for item in _children(batch):
        found = first_tensor(item)
        if found is not None:
            return found
    return None


def tensors_of(batch: Any) -> list[Tensor]:
    """All tensors of a nested batch, in the order it is written."""
    if isinstance(batch, Tensor):
        return [batch]
    return [tensor for item in _children(batch) for tensor in tensors_of(item)]


def listed(samples: Collection[Any]) -> str:
    """The first few of some dataset indices, for messages."""
    return ", ".join(map(str, islice(samples, _LISTED))) + (", ..." if len(samples) > _LISTED else "")


def count_samples(batch: Any) -> int:
    """The first dimension of the first tensor; 1 where there is none."""
    simple = type(batch) in (tuple, list) and batch and type(batch[0]) is Tensor
    tensor = batch[0] if simple else first_tensor(batch)
    return tensor.size(0) if tensor is not None and tensor.ndim else 1


def checksum(batch: Any, depth: int = 0) -> int:
    """A number that depends on the tensors and plain values of a batch, and on nothing else."""
    if isinstance(batch, Tensor):
        if batch.layout is not torch.strided:  # sparse
            return checksum(batch.detach().to_dense(), depth)
        raw = batch.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        return crc32(raw.numpy(), crc32(describe(batch).encode()))
    if batch is None or isinstance(batch, (bool, int, float, str, bytes)):
        return crc32(repr(batch).encode())
    if isinstance(batch, (np.ndarray, np.generic)):
        content = repr(batch.tolist()).encode() if batch.dtype.hasobject else batch.tobytes()
        return crc32(content, crc32(f"{batch.dtype}{batch.shape}".encode()))
    items = _children(batch)
    if not items and depth < 6 and hasattr(batch, "__dict__") and not isinstance(batch, type):
        items = list(vars(batch).values())  # a graph, an object of the user's own
    return crc32(repr([checksum(item, depth + 1) for item in items]).encode())


def _children(batch: Any) -> list[Any]:
    if isinstance(batch, Mapping):
        return list(batch.values())
    if isinstance(batch, (tuple, list)):
        return list(batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return [getattr(batch, f.name) for f in dataclasses.fields(batch)]
    return []


def map_tensors(batch: Any, change: Callable[[Any], Any]) -> Any:
    """A batch of the same structure with ``change`` applied to tensors and objects with ``.to``."""
    if isinstance(batch, Tensor) or (hasattr(batch, "to") and not isinstance(batch, Mapping)):
        return change(batch)
    if isinstance(batch, Mapping):
        changed = {key: map_tensors(value, change) for key, value in batch.items()}
        return changed if type(batch) is dict else _rebuilt_mapping(batch, changed)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(item, change) for item in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(map_tensors(item, change) for item in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        moved: Any = copy.copy(cast(Any, batch))  # not built again: __post_init__ would run twice
        for f in dataclasses.fields(batch):
            object.__setattr__(moved, f.name, map_tensors(getattr(batch, f.name), change))
        return moved
    return batch


def to_device(
    value: Any, device: torch.device, dtype: torch.dtype | None = None, channels_last: bool = False
) -> Any:
    """A tensor on a device, or what an object's ``.to`` gives.

    Args:
        value: A tensor, or an object with ``.to``.
        device: Where it is needed.
        dtype: What floats become; None leaves them.
        channels_last: Images and volumes, 4-D and 5-D, get this memory format.
    """
    if not isinstance(value, Tensor):
        return value.to(device)
    floats = dtype is not None and value.is_floating_point()
    formats = {4: torch.channels_last, 5: torch.channels_last_3d} if channels_last else {}
    format_ = formats.get(value.ndim, torch.preserve_format)
    return value.to(device, dtype if floats else value.dtype, non_blocking=True, memory_format=format_)


def _rebuilt_mapping(batch: Mapping[Any, Any], changed: dict[Any, Any]) -> Any:
    try:
        return type(batch)(changed)  # type: ignore[call-arg]
    except TypeError:
        return changed


def describe(batch: Any, depth: int = 0) -> str:
    """One line: ``(uint8 [8, 3, 32, 32], int64 [8])``."""
    if isinstance(batch, Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')} {list(batch.shape)}"
    if isinstance(batch, Mapping) and depth < 3:
        items = [f"{k!r}: {describe(v, depth + 1)}" for k, v in list(batch.items())[:6]]
        return "{" + ", ".join(items) + (", ..." if len(batch) > 6 else "") + "}"
    if isinstance(batch, (tuple, list)) and depth < 3:
        inside = ", ".join(describe(item, depth + 1) for item in batch[:6])
        inside += ", ..." if len(batch) > 6 else ""
        return f"({inside})" if isinstance(batch, tuple) else f"[{inside}]"
    return type(batch).__name__
