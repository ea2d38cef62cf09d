"""What a process has allocated, by glibc: all threads, and libraries that allocate for themselves."""

from __future__ import annotations

import ctypes
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_LARGE = 64 * 1024
_M_MMAP_THRESHOLD = -3


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks"),
            *("fordblks", "keepcost"),
        )
    ]


_libc = ctypes.CDLL("libc.so.6")
_libc.mallinfo2.restype = _Mallinfo2


def count_large_blocks() -> None:
    """From here on each block of 64 KiB or more is mapped by itself, and given back when it is freed."""
    _libc.mallopt(_M_MMAP_THRESHOLD, _LARGE)


def mapped_bytes() -> int:
    """The bytes of all blocks of 64 KiB or more."""
    found = _libc.mallinfo2()
    return int(found.hblkhd + found.uordblks)


class Watch(TorchDispatchMode):
    """Sees the most of them after each operation of this thread, of backward too."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self.line: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        now = mapped_bytes()
        self.line.append((str(func), now))
        self.most = max(self.most, now)
        return result
