"""File operations that are tried again: a network file system may fail once and work a moment later."""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PAUSES = (0.1, 0.5, 2.0)
"""Seconds before each further attempt."""

_TRANSIENT = (errno.EIO, errno.ESTALE)


def retried(operation: Callable[[], T]) -> T:
    """What ``operation`` returns; after EIO or ESTALE it is called again, three times at most.

    It must be possible to repeat it from its beginning. So a file is written again as a whole when its
    fsync fails: the system may have dropped what was not on the disk, and report success the next time.

    Raises:
        OSError: of the last attempt; one of another kind at once.
    """
    for pause in PAUSES:
        try:
            return operation()
        except Exception as error:
            if error_number(error) not in _TRANSIENT:
                raise
        time.sleep(pause)
    return operation()


def error_number(error: Exception) -> int | None:
    """The system's error number; safetensors gives it in its message alone."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None
