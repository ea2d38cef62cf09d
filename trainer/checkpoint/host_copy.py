"""Copies of a run's tensors in the host's memory, for a thread to write while training goes on."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from ...errors import TornCopyError

_SAMPLES = 64


class HostCopy:
    """Copies tensors; those on the host that stay as they are until the next update, in a thread.

    Copying a gigabyte within the host's memory takes as long as a step may. So the thread does it while
    the next step's forward and backward run, which read weights and moments only, and ``finish`` waits
    for it before the update. What an accelerator holds is copied in the order of its own stream.

    The memory is kept for the next time: new memory costs several times more than the copy.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._taken: set[str] = set()
        self._steady: Collection[str] = ()
        self._later: list[tuple[str, Tensor, Any]] = []
        self._unsteady: set[str] = set()
        self._changed: list[str] = []
        self._arrived: torch.Event | None = None
        self._copied, self._released = threading.Event(), threading.Event()
        self.end()

    def begin(self, steady: Collection[str]) -> None:
        """Begin a new copy.

        Args:
            steady: Names of tensors that nothing changes until ``finish`` is called.
        """
        self._steady, self._later, self._arrived = steady, [], None
        self._taken.clear()
        self._copied.clear()
        self._released.clear()

    def take(self, name: str, tensor: Tensor) -> Tensor:
        """The memory that will hold a copy of ``tensor`` when ``run`` has ended."""
        buffer, pinned = self._buffers.get(name), tensor.is_cuda or tensor.is_xpu
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
            self._buffers[name] = buffer
        self._taken.add(name)
        if pinned:
            buffer.copy_(tensor, non_blocking=True)
            self._arrived = self._arrived or torch.Event(tensor.device)
        elif tensor.is_cpu and name in self._steady and name not in self._unsteady:
            self._later.append((name, tensor, _mark(tensor)))
        else:
            buffer.copy_(tensor)
        return buffer

    def planned(self) -> None:
        """All tensors have been taken."""
        for name in self._buffers.keys() - self._taken:
            del self._buffers[name]
        if self._arrived is not None:
            self._arrived.record()
        if not self._later:
            self.end()

    def run(self) -> None:
        """What the thread has to do: copy. ``end`` follows in any case."""
        if self._arrived is not None:
            self._arrived.synchronize()
        for name, tensor, _ in self._later:
            self._buffers[name].copy_(tensor)
        self._copied.set()

    def check(self) -> None:
        """Wait for ``finish``: it tells whether the copies are of one moment.

        Raises:
            TornCopyError: when tensors were changed before it was called.
        """
        self._released.wait()
        changed, self._changed = self._changed, []
        if changed:
            raise TornCopyError(
                "training_step changed weights in place while a checkpoint copied them, so it is left out; "
                "from now on these are copied before training goes on",
                got=", ".join(changed[:4]) + (f" and {len(changed) - 4} more" if len(changed) > 4 else ""),
            )

    def end(self) -> None:
        """Nothing is waited for any more."""
        self._later, self._changed = [], []
        self._copied.set()
        self._released.set()

    def finish(self) -> None:
        """Wait until tensors may change again, and look whether one did before."""
        self._copied.wait()
        if self._released.is_set():
            return
        self._changed = [name for name, tensor, mark in self._later if _mark(tensor) != mark]
        self._unsteady.update(self._changed)
        self._later = []
        self._released.set()


def _mark(tensor: Tensor) -> tuple[Any, ...]:
    """Changes when a tensor on the host is written to: its version, its place, words out of all its parts.

    Writing to ``tensor.data`` leaves the version as it is.
    """
    place, words = tensor.data_ptr(), tensor.nbytes // 4
    room = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()
    if not 0 < words * 4 <= room:
        return tensor._version, place
    memory = (ctypes.c_uint32 * words).from_address(place)
    return tensor._version, place, *memory[:: -(-words // _SAMPLES)], memory[words - 1]
