"""Copies of a run's tensors in the host's memory, for a thread to write while training continues."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes


class HostCopy:
    """Copies tensors, and keeps the memory for the next time: new memory costs several times the copy.

    Host tensors are copied at once. What an accelerator holds is copied into pinned memory by its own
    current stream, between the step before and the one after: the host waits for an event in ``wait``.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._taken: set[str] = set()
        self._arrived: torch.Event | None = None
        self._reserve: Tensor | None = None
        self._toucher: threading.Thread | None = None

    def reserve(self, tensors: Iterable[Tensor]) -> None:
        """Have a thread touch as much new memory as copies of these take, so that the first copy need not.

        Without effect after the first copy.
        """
        if self._buffers or self._reserve is not None:
            return
        self._reserve = torch.empty(sum(map(_aligned_size, tensors)), dtype=torch.uint8)
        self._toucher = threading.Thread(target=self._reserve.zero_, name="checkpoint memory", daemon=True)
        self._toucher.start()

    def begin(self) -> None:
        """Begin a new copy."""
        self._arrived = None
        self._taken.clear()
        if self._toucher is not None:
            self._toucher.join()
            self._toucher = None

    def take(self, name: str, tensor: Tensor) -> Tensor:
        """The memory that holds a copy of ``tensor``, after ``wait``."""
        buffer, pinned = self._buffers.get(name), tensor.is_cuda or tensor.is_xpu
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = None if pinned else self._reserved(tensor)
            if buffer is None:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
            self._buffers[name] = buffer
        self._taken.add(name)
        buffer.copy_(tensor, non_blocking=pinned)
        if pinned:
            self._arrived = self._arrived or torch.Event(tensor.device)
        return buffer

    def planned(self) -> None:
        """All tensors have been taken."""
        for name in self._buffers.keys() - self._taken:
            del self._buffers[name]
        self._reserve = None  # what is left of it is freed with the last buffer that lies in it
        if self._arrived is not None:
            self._arrived.record()

    def wait(self) -> None:
        """Wait for what an accelerator still copies."""
        if self._arrived is not None:
            self._arrived.synchronize()

    def _reserved(self, tensor: Tensor) -> Tensor | None:
        """Memory out of the reserve; None where that does not suffice."""
        if self._reserve is None or tensor.nbytes > self._reserve.numel():
            return None
        memory, self._reserve = self._reserve[: tensor.nbytes], self._reserve[_aligned_size(tensor) :]
        return memory.view(tensor.dtype).view(tensor.shape)


def _aligned_size(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
