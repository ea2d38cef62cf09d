"""Forks loader workers out of a process whose threads may be inside Python at that moment.

Before Python 3.12 the lock over thread states is copied as it is: a worker forked while a thread of the
process group takes it (to drop the last reference to a tensor) waits for it forever, and the loader for
the worker. Such a worker is noticed, ended and forked again.
"""

from __future__ import annotations

import os
import select
import signal
from multiprocessing import popen_fork
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any

_SECONDS = 10.0
_TRIES = 5


class _Popen(popen_fork.Popen):
    def _launch(self, process_obj: Any) -> None:
        for _ in range(_TRIES):
            ready, process_obj.started = os.pipe()
            try:
                super()._launch(process_obj)  # type: ignore[misc]
                poll = select.poll()  # select() takes no descriptor above 1023
                poll.register(ready, select.POLLIN)
                if poll.poll(_SECONDS * 1000):
                    return
            finally:
                os.close(ready)
                os.close(process_obj.started)
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        raise RuntimeError(f"a loader worker did not start, in {_TRIES} attempts")


class _Process(ForkProcess):
    started: int

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return _Popen(process_obj)

    def run(self) -> None:
        os.write(self.started, b"1")
        super().run()


class CarefulFork(ForkContext):
    """The fork context, for ``DataLoader(multiprocessing_context=...)``."""

    Process = _Process  # type: ignore[assignment]
