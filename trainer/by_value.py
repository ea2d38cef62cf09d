"""Small tensors come from a loader's worker by value, through the pipe that the batch goes through anyway.

torch stacks each of a batch's tensors in shared memory of its own (0.3 ms) and hands over a file
descriptor, for which the two processes connect and authenticate: 0.4 ms of each for labels of 256 bytes.
Copying takes a third of that.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

_BYTES = 512 * 1024  # half of what a file descriptor costs both; at twice the size as much
_ALONE = 2  # the tensor, and the object through which we ask
_PIPE = 1024 * 1024  # as much as any user may ask for: a worker need not wait for each 64 KiB to be read


def send_small_tensors_by_value() -> None:
    """From this process, which is a loader's worker."""
    ForkingPickler.register(Tensor, _reduce)
    if default_collate_fn_map[Tensor] is collate_tensor_fn:
        default_collate_fn_map[Tensor] = _stack


def widen_pipe(iterator: Any) -> None:
    """That of a DataLoader's iterator with workers, where the system lets us."""
    results = getattr(iterator, "_worker_result_queue", None)
    if sys.platform == "linux" and results is not None:
        import fcntl

        with suppress(OSError, AttributeError):
            fcntl.fcntl(results._reader.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)


def _stack(batch: Any, *, collate_fn_map: Any = None) -> Tensor:
    """As torch stacks where there are no workers."""
    first = batch[0]
    if type(first) is Tensor and _is_plain(first) and first.nbytes * len(batch) <= _BYTES:
        return torch.stack(batch)
    found: Tensor = collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return found


def _reduce(tensor: Tensor) -> Any:
    size = tensor.nbytes if _is_plain(tensor) and tensor.is_contiguous() else 0
    if not 0 < size <= _BYTES or _is_shared(tensor):
        return reduce_tensor(tensor)
    return _rebuild, (ctypes.string_at(tensor.data_ptr(), size), tensor.dtype, tensor.shape)


def _is_plain(tensor: Tensor) -> bool:
    """Whether its bytes are all there is to it."""
    marked = tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized
    return tensor.is_cpu and tensor.layout is torch.strided and not (marked or tensor.is_nested)


def _is_shared(tensor: Tensor) -> bool:
    """Whether another tensor may lie in the same memory, and has to there too."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    return count is None or count(tensor.untyped_storage()._cdata) > _ALONE


def _rebuild(content: bytes, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    tensor = torch.empty(shape, dtype=dtype)
    ctypes.memmove(tensor.data_ptr(), content, len(content))
    return tensor
