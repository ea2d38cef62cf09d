"""Reads one pass over a loader: in the main thread, or, where torch's workers read, in a thread.

A signal that arrives while data is waited for must be able to stop the run. A handler that raises inside
torch's or multiprocessing's queues can leave one of their locks taken, and ending the workers then waits
for that lock. So a thread reads what comes from workers and passes it through a queue; the main thread
waits for that queue, a tenth of a second at a time, and raises between two waits. Code of the user that
reads in the main thread is interrupted by the handler itself.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from ....strategies.machine.devices import pins
from ....strategies.torch_internals import drop_iterator
from ...faults.signals import Signals
from .worker_processes import WorkerProcesses

_ASK_EVERY = 0.1  # seconds of waiting for a batch, until signals are looked at
_GRACE = 1.0  # seconds for workers to finish what they do, until they are killed
_IN_MEMORY: tuple[type, ...] = (type(iter([])), type(iter(())))
_LOST_AFTER = 10.0  # seconds without a batch; torch itself looks for dead workers every 5


class Reader(ABC):
    """The batches of one pass, one after the other.

    Attributes:
        ended: Number and exit code of the workers that had ended when a read failed.
        in_memory: Whether the batches that are left lie in a list or a tuple: to read them runs no code.
    """

    ended: list[tuple[int, int]]
    in_memory = False

    def __iter__(self) -> Iterator[Any]:
        return self

    @abstractmethod
    def __next__(self) -> Any:
        """The next batch."""

    @abstractmethod
    def close(self, for_good: bool = True) -> None:
        """End the pass, and the workers.

        Args:
            for_good: Those too that are meant to outlive an epoch (``persistent_workers``).
        """


def open_reader(
    source: Any,
    signals: Signals,
    workers: WorkerProcesses | None = None,
    begin: Callable[[Any], Iterator[Any]] = iter,
) -> Reader:
    """Begin a pass over a loader, or over anything that gives batches.

    A thread reads ahead of the loop. What counts what it gave (``state_dict``), or runs code of the user in
    this process (``__iter__``), is therefore read by the loop itself.

    Args:
        source: A DataLoader, or any iterable of batches.
        signals: Ends a read that waits for data.
        workers: The loader's; None where ``source`` is no DataLoader.
        begin: Makes the iterator of a loader without workers.
    """
    if workers is None or not source.num_workers:
        return DirectReader(source, signals, workers, begin)
    if type(source).__iter__ is not DataLoader.__iter__ or hasattr(source, "state_dict"):
        return DirectReader(source, signals, workers)
    return ThreadReader(source, signals, workers)


class DirectReader(Reader):
    """Reads in the thread that asks; a signal may raise ``StopWaiting`` while it reads."""

    def __init__(
        self,
        source: Any,
        signals: Signals,
        workers: WorkerProcesses | None,
        begin: Callable[[Any], Iterator[Any]] = iter,
    ) -> None:
        self._source, self._signals, self._workers, self._begin = source, signals, workers, begin
        self._iterator: Any = None
        self.ended = []

    def __next__(self) -> Any:
        try:
            if self._iterator is None:
                self._iterator = self._signals.call_interruptible(self._begin, self._source)
                self.in_memory = type(self._iterator) in _IN_MEMORY
            batch = self._signals.call_interruptible(next, self._iterator)
            if self._workers is not None:
                self._signals.quiet_children()
            return batch
        except StopIteration:
            raise
        except Exception:
            self.ended = [] if self._workers is None else self._workers.ended()
            raise
        except BaseException:
            # Before the frames of its iterators go: these would wait for workers that may be stuck.
            if self._workers is not None:
                self._workers.kill()
            raise

    def close(self, for_good: bool = True) -> None:
        self._iterator = None
        if self._workers is not None and for_good and not self._workers.exiting:
            drop_iterator(self._source)
            self._workers.kill()
            self._workers.forget()


class _Failure(NamedTuple):
    error: BaseException
    ended: list[tuple[int, int]]


_END = object()


class ThreadReader(Reader):
    """Reads a loader with workers in a thread, at most two batches ahead.

    Created outside of the main thread, torch's iterator installs no handler for SIGCHLD: a worker that dies
    is an error of the read that needs it, not of any moment.
    """

    def __init__(self, loader: DataLoader[Any], signals: Signals, workers: WorkerProcesses) -> None:
        self._loader, self._signals, self._workers = loader, signals, workers
        self._results: queue.Queue[Any] = queue.Queue(1)
        self._closed = threading.Event()
        self._abandoned = False
        self._lost_at: float | None = None  # when workers were first seen to have died
        self.ended = []
        arguments = (loader, workers, self._results, self._closed, _thread_settings(loader), workers.reader)
        self._thread = threading.Thread(target=_read_all, args=arguments, name="data reader", daemon=True)
        workers.reader = self._thread if loader.persistent_workers else None
        self._thread.start()

    def __next__(self) -> Any:
        if self._closed.is_set():
            raise StopIteration
        result = self._wait()
        if result is _END:
            self._closed.set()
            raise StopIteration
        if not isinstance(result, _Failure):
            return result
        self._closed.set()
        self.ended, error = result.ended, result.error
        try:
            raise error
        finally:
            del result, error  # a cycle, through the frame in its traceback

    def _wait(self) -> Any:
        self._lost_at = None
        while True:
            try:
                return self._results.get(timeout=_ASK_EVERY)
            except queue.Empty:
                self._signals.give_up()
                self._look_for_workers()

    def _look_for_workers(self) -> None:
        """A worker that dies while it sends a batch: torch does not see it and waits for the rest."""
        lost, now = self._workers.lost(), time.monotonic()
        if not lost:
            return
        self._lost_at = self._lost_at or now
        if now - self._lost_at > _LOST_AFTER:
            self._closed.set()
            self.ended = self._workers.ended()
            ids = ", ".join(map(str, lost))
            raise RuntimeError(f"DataLoader worker (pid(s) {ids}) died while it sent a batch")

    def close(self, for_good: bool = True) -> None:
        """End the pass within seconds, whatever the workers do.

        A thread that still waits for a killed worker ends by itself when torch looks for it, within 5 s.
        """
        if self._workers.exiting:
            return
        self._closed.set()
        with suppress(queue.Empty):
            self._results.get_nowait()  # room for what the thread has in hand
        if self._loader.persistent_workers and not for_good:
            return  # what is under way is waited for by the next pass
        if not self._abandoned:
            _end(self._thread, self._workers)
        self._abandoned = self._thread.is_alive()
        if self._loader.persistent_workers:
            dropping = threading.Thread(target=drop_iterator, args=(self._loader,), daemon=True)
            dropping.start()
            _end(dropping, self._workers)
        self._workers.forget()


def _end(thread: threading.Thread, workers: WorkerProcesses) -> None:
    """Wait for a thread that waits for workers; if that takes too long, kill them."""
    if thread is threading.current_thread():
        return
    thread.join(_GRACE)
    if thread.is_alive():
        workers.kill()
        thread.join(_GRACE)


def _thread_settings(loader: DataLoader[Any]) -> Callable[[], None]:
    """What torch keeps for each thread by itself, of this one: workers and pinned memory go by it."""
    gradients = torch.is_grad_enabled()
    device = torch.accelerator.current_device_index() if loader.pin_memory and pins() else None

    def apply() -> None:
        torch.set_grad_enabled(gradients)
        if device is not None:
            torch.accelerator.set_device_index(device)

    return apply


def _read_all(
    loader: DataLoader[Any],
    workers: WorkerProcesses,
    results: queue.Queue[Any],
    closed: threading.Event,
    settings: Callable[[], None],
    before: threading.Thread | None,
) -> None:
    """The thread: once ``closed`` is set, and ``results`` taken from, it puts no more than once.

    ``before`` is a thread that may still be in its last read from the same workers.
    """
    iterator = None
    last: Any = _END
    try:
        if before is not None:
            before.join()
        settings()
        iterator = iter(loader)
        while not closed.is_set():
            results.put(next(iterator))
    except StopIteration:
        pass
    except BaseException as error:
        if iterator is None:
            workers.kill()  # those that were started before one was not
        # The connection to a worker that dies is lost a moment before the worker has ended.
        is_lost = isinstance(error, (ConnectionError, EOFError))
        last = _Failure(error, workers.ended(_GRACE if is_lost else 0.0))
        _clear_frames(error)
    if not closed.is_set():
        results.put(last)
    del last, iterator  # torch ends the workers, and waits for them


def _clear_frames(error: BaseException | None) -> None:
    """Else whoever keeps the error keeps the iterator in its frames, and with it the workers."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
