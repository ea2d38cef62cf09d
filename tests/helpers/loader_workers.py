"""What loader workers have come to, for tests that end them at a certain point."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from pathlib import Path

SECONDS = 60  # until what is waited for is taken for lost


def wait_until_sent() -> None:
    """In a worker: until the thread that sends its batches has nothing left to send, and holds no lock.

    Ended before that, it would keep the lock of the queue of all workers.
    """
    deadline = time.monotonic() + SECONDS
    while True:
        senders = [thread for thread in threading.enumerate() if thread.name == "QueueFeederThread"]
        frames = sys._current_frames()
        if all(frames[thread.ident].f_code is threading.Condition.wait.__code__ for thread in senders):
            return
        assert time.monotonic() < deadline, "a batch is not sent"
        time.sleep(0.005)


def wait_until_one_died(workers: int) -> None:
    """In the process that reads: until one of ``workers`` has died, whose SIGCHLD has been sent then."""
    # One that had died already is joined by this call, and is not in its list.
    left = [process.pid for process in multiprocessing.active_children()]
    deadline = time.monotonic() + SECONDS
    while sum(map(_is_alive, left)) >= workers:
        assert time.monotonic() < deadline, "no worker dies"
        time.sleep(0.005)


def _is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
