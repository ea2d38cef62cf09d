"""Small tensors come from a loader's worker by value, in the message that announces the batch.

torch puts each tensor of a batch into separate shared memory (0.3 ms) and passes a file descriptor, for
which the two processes connect and authenticate: 0.4 ms of each for labels of 256 bytes.
"""

from __future__ import annotations

import ctypes
from collections import Counter, UserDict
from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info

from ....strategies.torch_internals import collate_table, collate_tensors

_TENSOR = 16 * 1024  # bytes; above, copying them through the pipe saves little
_BATCH = 32 * 1024  # a pipe holds 64 KiB: a worker need not wait until its batch is read
_VALUES = {bool, int, float, complex, str, bytes, type(None)}


def send_small_by_value(loader: DataLoader[Any]) -> None:
    """Have the workers of a copy of the user's loader do so."""
    if loader.num_workers:
        vars(loader)["collate_fn"] = SmallByValue(loader.collate_fn)


def stack_in_own_memory() -> None:
    """In a worker: the default collate function stacks small tensors where they can be copied from.

    The table of what it does with each type is torch's documented way to extend it. Where somebody else has
    changed its entry for tensors, that stays.
    """
    if collate_table[Tensor] is collate_tensors:
        collate_table[Tensor] = _stack


class SmallByValue:
    """A collate function whose batches have their small tensors' content pickled with them.

    That must change nothing but the time it takes. A tensor that lies in shared memory, or in the same
    memory as another of the batch, is sent as torch does; and so is every batch that holds anything but
    tensors, plain values and the usual containers, in which more tensors may hide.
    """

    def __init__(self, users: Callable[[Any], Any]) -> None:
        self._users = users

    def __call__(self, samples: Any) -> Any:
        batch = self._users(samples)
        return batch if get_worker_info() is None else _by_value(batch)


class _Sent:
    """Pickled here, a tensor over there."""

    def __init__(self, tensor: Tensor) -> None:
        content = ctypes.string_at(tensor.data_ptr(), tensor.nbytes)
        self._parts = content, tensor.dtype, tensor.shape, tensor.stride()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, self._parts


def _rebuild(content: bytes, dtype: torch.dtype, shape: torch.Size, stride: tuple[int, ...]) -> Tensor:
    tensor = torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
    ctypes.memmove(tensor.data_ptr(), content, len(content))
    return tensor


def _by_value(batch: Any) -> Any:
    tensors: dict[int, Tensor] = {}
    if not _collect(batch, tensors):
        return batch
    memories = Counter(tensor.untyped_storage().data_ptr() for tensor in tensors.values())
    sent, room = {}, _BATCH
    for key, tensor in tensors.items():
        size, memory = tensor.nbytes, tensor.untyped_storage()
        alone = memories[memory.data_ptr()] == 1 and size == memory.nbytes() and not tensor.is_shared()
        if alone and tensor.is_contiguous() and 0 < size <= min(room, _TENSOR):
            sent[key] = _Sent(tensor)
            room -= size
    return _replace(batch, sent) if sent else batch


def _collect(batch: Any, tensors: dict[int, Tensor]) -> bool:
    """Find the tensors of a batch; whether these are all that it can hold, and are their bytes alone."""
    kind = type(batch)
    if kind is Tensor:
        tensors[id(batch)] = batch
        return _is_plain(batch)
    if (
        kind in _VALUES
        or isinstance(batch, np.generic)
        or (kind is np.ndarray and not batch.dtype.hasobject)
    ):
        return True
    if kind is dict or isinstance(batch, UserDict):
        return all(_collect(key, tensors) and _collect(value, tensors) for key, value in batch.items())
    if kind in (list, tuple) or (isinstance(batch, tuple) and hasattr(batch, "_fields")):
        return all(_collect(item, tensors) for item in batch)
    return False


def _replace(batch: Any, sent: dict[int, _Sent]) -> Any:
    """A batch of the same structure, with these tensors replaced."""
    kind = type(batch)
    if kind is Tensor:
        return sent.get(id(batch), batch)
    if kind is dict:
        return {key: _replace(value, sent) for key, value in batch.items()}
    if isinstance(batch, UserDict):
        duplicate = copy(batch)
        duplicate.data = _replace(dict(batch.data), sent)
        return duplicate
    if kind in (list, tuple):
        return kind(_replace(item, sent) for item in batch)
    if isinstance(batch, tuple):
        return kind(*(_replace(item, sent) for item in batch))
    return batch


def _is_plain(tensor: Tensor) -> bool:
    """Whether its bytes are all there is to it."""
    if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_nested:
        return False
    marked = tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized
    return not marked


def _stack(batch: Any, *, collate_fn_map: Any = None) -> Tensor:
    """As torch stacks in a worker, but not in shared memory."""
    first = batch[0]
    if type(first) is Tensor and _is_plain(first) and first.nbytes * len(batch) <= _TENSOR:
        whole = torch.empty((len(batch), *first.shape), dtype=first.dtype, device="cpu")
        return torch.stack(batch, out=whole)
    found: Tensor = collate_tensors(batch, collate_fn_map=collate_fn_map)
    return found
