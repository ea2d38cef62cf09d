"""The worker processes of a DataLoader, through the ``multiprocessing_context`` that it takes."""

from __future__ import annotations

import atexit
import copy
import multiprocessing
import multiprocessing.util  # registers its handler at exit: ours runs before it
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils.data import DataLoader

from .file_descriptors import check_file_descriptors

_SECONDS = 1.0  # for a killed process to be gone


class WorkerProcesses:
    """Creates a loader's worker processes, and can therefore say how they ended and kill them.

    Workers ignore the signals that a process group is sent (``WorkerInit``): only SIGKILL ends one that is
    in a read that does not return. torch and Python's exit send SIGTERM.

    Args:
        count: How many a loader starts at once.
        base: The loader's own context; None: the default one.

    Attributes:
        reader: The thread that last read from workers which outlive an epoch.
        exiting: Python ends: all were killed, and modules may already be empty.
    """

    reader: threading.Thread | None = None
    exiting = False

    def __init__(self, count: int, base: BaseContext | None) -> None:
        self._count, self._base, self._owner = count, base, os.getpid()
        self._processes: list[BaseProcess] = []  # of the latest iterator, by the worker's number
        self._earlier: list[BaseProcess] = []
        _everyone.add(self)

    def context(self) -> BaseContext:
        """A context to give to the loader: the base, but its processes are noted here."""
        self._base = self._base or _default_context()
        noting = copy.copy(self._base)
        noting.Process = self._create  # type: ignore[attr-defined]
        return noting

    def _create(self, *args: Any, **named: Any) -> BaseProcess:
        if len(self._processes) == self._count:
            self.forget()
        process: BaseProcess = self._base.Process(*args, **named)  # type: ignore[union-attr]
        self._processes.append(process)
        return process

    def forget(self) -> None:
        """The next process is worker 0 of another iterator."""
        self._earlier = [process for process in self._earlier + self._processes if process.is_alive()]
        self._processes, self.reader = [], None

    def ended(self, seconds: float = 0.0) -> list[tuple[int, int]]:
        """Number and exit code of the workers that have ended; those that failed, if any.

        Args:
            seconds: To wait for one to end, if none has.
        """
        started = [(n, process) for n, process in enumerate(self._processes) if process.pid is not None]
        dead = set(wait([process.sentinel for _, process in started], timeout=seconds))
        codes = [(number, _exit_code(process)) for number, process in started if process.sentinel in dead]
        found = [(number, code) for number, code in codes if code is not None]
        return [(number, code) for number, code in found if code] or found

    def lost(self) -> list[int]:
        """The ids of those that failed, or of all when none is left: who waits for them waits in vain."""
        ended = self.ended()
        if not any(code for _, code in ended) and len(ended) < self._count:
            return []
        return [self._processes[number].pid or 0 for number, _ in ended]

    def kill(self) -> None:
        """End all that are alive at once, as SIGTERM would not."""
        if os.getpid() != self._owner:  # a fork of this process: they are not its children
            return
        alive = [process for process in [*self._earlier, *self._processes] if process.is_alive()]
        with _unnoticed():
            for process in alive:
                process.kill()
            for process in alive:
                process.join(_SECONDS)


def end_with_parent() -> None:
    """End this worker when the process it reads for has ended, however that ended.

    torch's worker asks for its parent's id when it is ready to read: one whose parent was killed before
    that would wait forever.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_exit_after, args=(parent,), name="parent watch", daemon=True).start()


def _exit_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _exit_code(dead: BaseProcess) -> int | None:
    """That of a process that has ended; while another thread asks for it too, it may be hidden from us."""
    deadline = time.monotonic() + _SECONDS
    while (code := dead.exitcode) is None and time.monotonic() < deadline:
        time.sleep(0.001)
    return code


@contextmanager
def _unnoticed() -> Iterator[None]:
    """No handler of SIGCHLD meanwhile: torch's raises for a worker that was killed."""
    child = getattr(signal, "SIGCHLD", None)
    if child is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = signal.getsignal(child)
    if not callable(usual):
        yield
        return
    signal.signal(child, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(child, usual)


def _default_context() -> BaseContext:
    if _forks_beside_threads():
        from .worker_fork import CarefulFork

        return CarefulFork()
    return multiprocessing.get_context()


def _forks_beside_threads() -> bool:
    """Whether workers are forked while the threads of a process group may be inside Python."""
    forks = sys.platform == "linux" and multiprocessing.get_start_method(allow_none=True) in (None, "fork")
    return forks and sys.version_info < (3, 12) and torch.distributed.is_initialized()


_everyone: weakref.WeakSet[WorkerProcesses] = weakref.WeakSet()


@atexit.register
def _kill_all() -> None:
    """Before Python waits for them at its exit, in case a pass over a loader was never closed."""
    for processes in list(_everyone):
        processes.exiting = True
        processes.kill()


def processes_of(loader: DataLoader[Any]) -> WorkerProcesses:
    """Note the processes that a copy of the user's loader starts from now on.

    Raises:
        PacelineError: where the process may have too few files open for them.
    """
    check_file_descriptors(loader.num_workers, loader.prefetch_factor)
    processes = WorkerProcesses(loader.num_workers, loader.multiprocessing_context)
    if loader.num_workers:
        loader.multiprocessing_context = processes.context()
    return processes
