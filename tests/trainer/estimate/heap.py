"""What a process has allocated, by glibc: all threads, and libraries that allocate for themselves."""

from __future__ import annotations

import ctypes
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


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


def allocated_bytes() -> int:
    """What is allocated now."""
    found = _libc.mallinfo2()
    return int(found.hblkhd + found.uordblks)


class Watch(TorchDispatchMode):
    """Sees the most of them after each operation of this thread, of backward too."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.most = max(self.most, allocated_bytes())
        return result
