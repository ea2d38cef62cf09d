"""Copies of a run's tensors in the host's memory, for a thread to write while training goes on."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from .checkpoint_files import CheckpointError


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
        self._arrived: torch.Event | None = None
        self._done = threading.Event()
        self._done.set()

    def begin(self, steady: Collection[str]) -> None:
        """Begin a new copy.

        Args:
            steady: Names of tensors that nothing changes until ``finish`` is called.
        """
        self._steady, self._later, self._arrived = steady, [], None
        self._taken.clear()
        self._done.clear()

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
        elif tensor.is_cpu and name in self._steady:
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
            self._done.set()

    def run(self) -> None:
        """What the thread has to do. ``end`` follows in any case.

        Raises:
            CheckpointError: when a tensor was changed meanwhile.
        """
        if self._arrived is not None:
            self._arrived.synchronize()
        for name, tensor, _ in self._later:
            self._buffers[name].copy_(tensor)
        for name, tensor, mark in self._later:
            if _mark(tensor) != mark:
                raise CheckpointError(
                    "training_step changes weights in place while a checkpoint copies them",
                    got=name,
                    fix="Checkpoint(background=False), or change them in on_step_end",
                )
        self.end()

    def end(self) -> None:
        """Tensors may change again."""
        self._later = []
        self._done.set()

    def finish(self) -> None:
        """Wait until tensors may change again."""
        self._done.wait()


def _mark(tensor: Tensor) -> tuple[int, int, int]:
    """Changes when a tensor on the host is written to: its version, its place, a word out of its middle.

    Writing to ``tensor.data`` leaves the version as it is.
    """
    place = tensor.data_ptr()
    words = tensor.untyped_storage().nbytes() // 4 if tensor.is_contiguous() else 0
    middle = place + tensor.nbytes // 8 * 4
    word = ctypes.c_uint32.from_address(middle).value if words and tensor.nbytes >= 8 else 0
    return tensor._version, place, word
