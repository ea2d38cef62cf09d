"""Small tensors come from a loader's worker by value, through the pipe that the batch goes through anyway.

torch stacks each of a batch's tensors in shared memory of its own (0.3 ms) and hands over a file
descriptor, for which the two processes connect and authenticate: 0.4 ms of each for labels of 256 bytes.
Copying takes a third of that.
"""

from __future__ import annotations

import ctypes
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

_BYTES = 16 * 1024  # a batch of a few of them fits an ordinary pipe
_ALONE = 2  # the tensor, and the object through which we ask


def send_small_tensors_by_value() -> None:
    """From this process, which is a loader's worker; where nobody else has a say in it."""
    if ForkingPickler._extra_reducers.get(Tensor) is reduce_tensor:  # type: ignore[attr-defined]
        ForkingPickler.register(Tensor, _reduce)
    if default_collate_fn_map[Tensor] is collate_tensor_fn:
        default_collate_fn_map[Tensor] = _stack


def _stack(batch: Any, *, collate_fn_map: Any = None) -> Tensor:
    """As torch stacks in a worker, but not in shared memory."""
    first = batch[0]
    if type(first) is Tensor and _is_plain(first) and first.nbytes * len(batch) <= _BYTES:
        whole = torch.empty((len(batch), *first.shape), dtype=first.dtype, device="cpu")
        return torch.stack(batch, out=whole)
    found: Tensor = collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return found


def _reduce(tensor: Tensor) -> Any:
    size = tensor.nbytes if _is_plain(tensor) and tensor.is_contiguous() else 0
    if not 0 < size <= _BYTES or _is_shared(tensor):
        return reduce_tensor(tensor)
    content = ctypes.string_at(tensor.data_ptr(), size)
    return _rebuild, (content, tensor.dtype, tensor.shape, tensor.stride())


def _is_plain(tensor: Tensor) -> bool:
    """Whether its bytes are all there is to it."""
    marked = tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized
    return tensor.is_cpu and tensor.layout is torch.strided and not (marked or tensor.is_nested)


def _is_shared(tensor: Tensor) -> bool:
    """Whether another tensor, or another process, may lie in the same memory, and has to there too."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    return tensor.is_shared() or count is None or count(tensor.untyped_storage()._cdata) > _ALONE


def _rebuild(content: bytes, dtype: torch.dtype, shape: torch.Size, stride: tuple[int, ...]) -> Tensor:
    tensor = torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
    ctypes.memmove(tensor.data_ptr(), content, len(content))
    return tensor
