"""How many files a loader's workers keep open, and the limit that they meet."""

from __future__ import annotations

import errno
import os
import re
import sys
from typing import Any

from ....errors import PacelineError

_OF_A_WORKER = 4  # a queue and a pipe, two ends each
_OTHERS = 24  # the loader's own, a checkpoint's, a logger's
_TOO_MANY = re.compile(r"Too many open files|received 0 items of ancdata")


def check_file_descriptors(workers: int, prefetch_factor: int | None) -> None:
    """See that so many workers can be started: one that cannot would end the run in the middle.

    Args:
        workers: The worker processes of a loader.
        prefetch_factor: Batches that each sends ahead; a large tensor in one is a file while it waits.

    Raises:
        PacelineError: naming the limit.
    """
    limit, used = _limit_and_used()
    needed = workers * (_OF_A_WORKER + (prefetch_factor or 2)) + _OTHERS
    if workers and limit is not None and limit - used < needed:
        raise PacelineError(
            f"too few files may be open for {workers} loader workers",
            code="too-few-files",
            got=f"a limit of {limit} (ulimit -n), of which {used} are in use; about {needed} are needed",
            fix=f"ulimit -n {_rounded(used + needed)} before the start, or fewer workers: "
            f"num_workers={max(0, (limit - used - _OTHERS) // (_OF_A_WORKER + (prefetch_factor or 2)))}",
        )


def explain_too_many_files(error: Exception) -> None:
    """Add the limit to an error of reading that it caused."""
    number = getattr(error, "errno", None)
    limit, used = _limit_and_used()
    if (number == errno.EMFILE or _TOO_MANY.search(str(error))) and limit is not None:
        error.add_note(
            f"this process may have {limit} files open (ulimit -n), and has {used}: raise the limit, or "
            "use fewer workers, a smaller prefetch_factor or fewer tensors in a batch"
        )


def _limit_and_used() -> tuple[int | None, int]:
    if sys.platform == "win32":
        return None, 0
    import resource

    limit: Any = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return None, 0
    try:
        return limit, len(os.listdir("/dev/fd"))
    except OSError:  # not even the list of them can be opened
        return limit, limit


def _rounded(number: int) -> int:
    return max(1024, 1 << (number - 1).bit_length())
