"""A DataLoader's iterator with workers: how it is made, waited for and ended.

A signal must not raise where one of its queues' locks is taken: its end would wait for that lock. And where
workers are waited for, it must be heard.
"""

from __future__ import annotations

import multiprocessing
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL, signal_handling
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ..faults.signals import ASK_EVERY, Signals
from .worker_tensors import prepare_pipe

_SIGNALS = "_paceline_signals"  # where an iterator has those that may end a wait for it
_LOOK = MP_STATUS_CHECK_INTERVAL  # seconds, without a batch, until workers are looked at
_PATIENCE = 1.0  # seconds, for workers to come to the end of what they do


def open_iterator(loader: Callable[[], Any], signals: Signals) -> Any:
    """What a loader's ``_get_iterator`` gives.

    A worker that dies is an error of the read that needs it, not of any moment.

    Args:
        loader: Gives it.
        signals: Ends a wait for its workers.
    """
    make = partial(type(loader())._get_iterator, loader())
    # One of another kind may read while it is made: it is not asked in yet whether to wait for that.
    if make.func is not DataLoader._get_iterator:
        return _open(make, signals)
    return signals.uninterrupted(_open, make, signals)


def _open(make: Callable[[], Any], signals: Signals) -> Any:
    usual, others = signal_handling._set_worker_pids, set(multiprocessing.active_children())
    # With the workers' ids torch raises out of a handler of SIGCHLD, wherever the main thread is.
    signal_handling._set_worker_pids = lambda *ids: None
    try:
        iterator = make()
    except BaseException:
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()
        raise
    finally:
        signal_handling._set_worker_pids = usual
    if getattr(iterator, "_worker_pids_set", False):
        iterator._worker_pids_set = False
    for worker in getattr(iterator, "_workers", ()):
        _end_by_kill(worker._popen)
    prepare_pipe(iterator, signals.give_up)
    if isinstance(iterator, _MultiProcessingDataLoaderIter):
        here, kind = weakref.ref(iterator), type(iterator)
        replaced: dict[str, Any] = {"_try_get_data": _in_slices(here, signals.give_up), _SIGNALS: signals}
        for name in ("_next_data", "_reset"):  # which tell workers what to read, through queues with locks
            replaced[name] = partial(_uninterrupted, signals, getattr(kind, name), here)
        vars(iterator).update(replaced)
    return iterator


def dismiss_workers(iterator: Any, for_good: bool = True) -> None:
    """Tell the workers that no more is read, and wait for none of them."""
    if _has_workers(iterator, for_good):
        _whole(iterator, _dismiss)


def end_workers(iterator: Any, for_good: bool = True) -> None:
    """Dismiss the workers, and see that they end."""
    if _has_workers(iterator, for_good):
        _whole(iterator, _end)


def _uninterrupted(signals: Signals, method: Any, iterator: Callable[[], Any], *args: Any) -> Any:
    """Stands where a method of an iterator was, and keeps nothing of it alive."""
    found = signals.uninterrupted(method, iterator(), *args)
    signals.give_up()  # what comes behind it may wait too
    return found


def _end_by_kill(process: Any) -> None:
    """Workers are deaf to SIGTERM, with which torch ends them and Python's exit does before it waits."""
    kill = weakref.WeakMethod(process.kill)
    process.terminate = lambda: kill()()  # type: ignore[misc]


def _in_slices(iterator: Callable[[], Any], give_up: Callable[[], None]) -> Callable[..., tuple[bool, Any]]:
    """Stands where an iterator's ``_try_get_data`` was: waits as long, and asks now and then whether to.

    torch looks whether workers live when it has waited in vain, also for a batch of another one: as seldom
    as ever.
    """
    wait = type(iterator())._try_get_data

    def waits(timeout: float | None = None) -> tuple[bool, Any]:
        end = time.monotonic() + (_LOOK if timeout is None else timeout)
        while True:
            give_up()
            left = max(end - time.monotonic(), 0.0)
            if left == 0 or _arrives(iterator()._data_queue, min(left, ASK_EVERY)):
                found: tuple[bool, Any] = wait(iterator(), timeout=left)
                return found

    return waits


def _arrives(results: Any, seconds: float) -> bool:
    """Whether there is something to read, within so many seconds."""
    if hasattr(results, "_reader"):
        return bool(results._reader.poll(seconds))
    with results.not_empty:  # of the thread that pins memory
        return bool(results.queue) or results.not_empty.wait(seconds)


def _has_workers(iterator: Any, for_good: bool) -> bool:
    """Whether it has some that are to end; ``for_good``: those too that are meant to outlive an epoch."""
    workers = getattr(iterator, "_workers", ())
    return bool(workers) and not iterator._shutdown and (for_good or not iterator._persistent_workers)


def _whole(iterator: Any, what: Callable[[Any], None]) -> None:
    """Do it, and no signal raises in the midst of it."""
    getattr(iterator, _SIGNALS, Signals()).uninterrupted(what, iterator)


def _dismiss(iterator: Any) -> None:
    iterator._workers_done_event.set()
    for queue in iterator._index_queues:
        queue.put(None)


def _end(iterator: Any) -> None:
    pins = getattr(iterator, "_pin_memory_thread", None)
    if pins is not None:  # no worker may end while it reads what that one sends
        iterator._pin_memory_thread_done_event.set()
        iterator._worker_result_queue.put((None, None))
        pins.join(_PATIENCE)
    _dismiss(iterator)
    patience = time.monotonic() + _PATIENCE
    for worker in iterator._workers:
        worker.join(max(patience - time.monotonic(), 0))
    for worker in iterator._workers:
        if worker.is_alive():  # in a read that does not end
            worker.kill()
    iterator._shutdown_workers()
