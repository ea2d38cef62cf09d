"""The pieces put into a shallow copy of the user's DataLoader so that it reads in exact order.

The user's dataset, collate function, workers and subclass stay; only the batch sampler is replaced, and,
where something may draw random numbers, the dataset is wrapped so that each sample is read under a seed
of its own.
"""

from __future__ import annotations

import copy
import multiprocessing
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
    get_worker_info,
)
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL, signal_handling

from .batch import listed
from .by_value import prepare_pipe, send_small_tensors_by_value
from .data_errors import Samples
from .generator_memory import moved, restore, seed_for_sample, snapshot
from .placed_stream import PlacedStream, watch_worker
from .rng import NONE, Generators, derive, deriver
from .signals import WATCHED
from .stand_in import StandIn

_SLICE = 0.1  # seconds
_PATIENCE = 1.0  # seconds, for workers to come to the end of what they do


class Place(NamedTuple):
    """Where a micro-batch lies: what its samples' seeds are derived from."""

    seed: int
    epoch: int
    start: int


class PlacedIndices(list[Any]):
    """The indices of one micro-batch, carrying their place through the worker queue."""

    place: Place


class PlacedIndex(NamedTuple):
    """One index of a loader that does not collate, with its place."""

    index: Any
    place: Place


class SeededDataset(StandIn, Dataset[Any]):
    """Reads each sample under a seed of (seed, epoch, position): no worker count can change a draw.

    torch's generator is seeded for each sample. Seeding those of ``random`` and numpy costs more than many
    a sample: it begins when one was seen to draw from them, and the batch where that was is read again.
    A dataset with ``__getitems__`` of its own is read by the micro-batch, as long as nothing is drawn.

    Args:
        workers: How many read it.
        skips: A sample that cannot be read is left out.
    """

    def __init__(self, dataset: Any, workers: int = 0, skips: bool = False) -> None:
        self.inner, self._skips = dataset, skips
        # Where each worker is: what is left to see of one that was killed. And what was seen to be drawn.
        self._at = multiprocessing.RawArray("q", workers) if workers else None
        self._drawn: Any = multiprocessing.RawArray("b", 3) if workers else [False] * 3
        self._plain = reads_plainly(dataset)
        own = getattr(dataset, "__getitems__", None)
        self._takes_batches = callable(own) and not isinstance(dataset, Subset)
        self._epoch: int | None = None

    def __getitem__(self, item: PlacedIndex) -> Any:
        self._tell_worker(item.place.epoch)
        seed_for_sample(derive(*item.place))
        try:
            return self.inner[item.index]
        except Exception as error:
            error.add_note(f"while reading dataset index {item.index}")
            raise

    def __getitems__(self, indices: PlacedIndices) -> Any:
        place = indices.place
        self._tell_worker(place.epoch)
        # A collate function may draw: whatever is seeded for samples, it finds what the last one found.
        seed_for_sample(derive(place.seed, place.epoch, place.start + len(indices) - 1))
        if self._plain:
            return self._read_samples(indices, place, NONE)
        before = snapshot()
        while True:
            drawn = tuple(map(bool, self._drawn))
            by_batch = self._takes_batches and not any(drawn) and not self._skips
            seeded = NONE if by_batch else (True, drawn[1], drawn[2])
            failed, found = None, None
            try:
                if by_batch:
                    found = self._read_batch(indices, place.start)
                else:
                    found = self._read_samples(indices, place, seeded)
            except Exception as error:
                failed = error
            of_batch = by_batch and found is not None and not isinstance(found, (list, tuple))
            new = [m and not s for m, s in zip(moved(before, snapshot()), seeded, strict=True)]
            if any(new) and not of_batch:
                for kind, is_new in enumerate(new):
                    self._drawn[kind] = is_new or drawn[kind]
                restore(before)
            elif failed is not None:
                raise failed
            else:
                return found

    def _read_batch(self, indices: list[Any], start: int) -> Any:
        self._note(None if self._at is None else get_worker_info(), start)
        try:
            return self.inner.__getitems__(list(indices))
        except Exception as error:
            error.add_note(f"while reading dataset indices {listed(indices)}")
            raise

    def _read_samples(self, indices: list[Any], place: Place, seeded: Generators) -> list[Any]:
        """Sample by sample, these generators seeded for each."""
        inner, takes_batches, seeds = self.inner, self._takes_batches, any(seeded)
        worker = None if self._at is None else get_worker_info()
        seed_of = deriver(place.seed, place.epoch)
        found = Samples()
        for position, index in enumerate(indices, place.start):
            if seeds:
                seed_for_sample(seed_of(position), seeded)
            if worker is not None:
                self._note(worker, position)
            try:
                found.append(inner.__getitems__([index])[0] if takes_batches else inner[index])
            except Exception as error:
                if not self._skips:
                    error.add_note(f"while reading dataset index {index}")
                    raise
                found.left_out.append((index, f"{type(error).__name__}: {error}"[:200]))
        return found if self._skips else list(found)

    def _note(self, worker: Any, position: int) -> None:
        if worker is not None and self._at is not None:
            self._at[worker.id] = position

    def position_of(self, worker: int) -> int:
        """Which position of the epoch's order a worker was last at."""
        return 0 if self._at is None else int(self._at[worker])

    def _tell_worker(self, epoch: int) -> None:
        """A worker that lives on has a dataset of its own, which must hear of a new epoch too."""
        if epoch == self._epoch:
            return
        self._epoch = epoch
        set_epoch = getattr(self.inner, "set_epoch", None)
        if callable(set_epoch) and get_worker_info() is not None:
            set_epoch(epoch)


class WorkerInit:
    """Runs in each loader worker: leaves signals to the main process, shows user code its own dataset.

    Small tensors go to the main process by value (``by_value.py``).
    """

    def __init__(self, users: Callable[[int], None] | None) -> None:
        self._users = users

    def __call__(self, worker_id: int) -> None:
        send_small_tensors_by_value()
        for number in WATCHED:  # they often go to whole process groups, and mean the rank
            signal.signal(number, signal.SIG_IGN)
        info = get_worker_info()
        dataset = None if info is None else info.dataset
        if isinstance(dataset, StandIn):
            object.__setattr__(info, "dataset", dataset.inner)  # it forbids plain assignment
        watched = watch_worker(info) if isinstance(dataset, PlacedStream) else None
        if self._users is None:
            return
        if watched is not None:
            watched.initialising = True
        self._users(worker_id)
        if watched is not None:
            watched.initialising = False


class Source:
    """Stands where the loader's batch sampler was: gives what the feed wants read next."""

    def __init__(self) -> None:
        self.make: Callable[[], Iterable[Any]] = tuple
        self.length = 0

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())

    def __len__(self) -> int:
        return self.length


def private_copy(loader: DataLoader[Any], give_up: Callable[[], None]) -> DataLoader[Any]:
    """A shallow copy with workers and a generator of its own; the user's loader stays as it is.

    ``vars(copy)`` is where more is replaced: DataLoader forbids assigning most of it after construction,
    to keep users from half-changing one.

    Args:
        give_up: Called again and again while its workers are waited for; ends the waiting by raising.
    """
    duplicate = copy.copy(loader)
    inside = vars(duplicate)
    inside["generator"] = torch.Generator()
    inside["_iterator"] = None
    inside["in_order"] = True  # else the order is that of the fastest worker, another on each rank
    if loader.num_workers:
        inside["worker_init_fn"] = WorkerInit(loader.worker_init_fn)
        here, make = weakref.ref(duplicate), type(loader)._get_iterator
        inside["_get_iterator"] = lambda: _with_workers(lambda: make(here()), give_up)  # type: ignore[arg-type]
        if loader.multiprocessing_context is None and _forks_beside_threads():
            from .careful_fork import CarefulFork

            duplicate.multiprocessing_context = CarefulFork()
    return duplicate


def _forks_beside_threads() -> bool:
    """Whether workers are forked while the threads of a process group may be inside Python."""
    forks = sys.platform == "linux" and multiprocessing.get_start_method(allow_none=True) in (None, "fork")
    return forks and sys.version_info < (3, 12) and torch.distributed.is_initialized()


def _workers_to_end(iterator: Any, for_good: bool) -> Sequence[Any]:
    """Those of a DataLoader's iterator; ``for_good``: those too that are meant to outlive an epoch."""
    workers: Sequence[Any] = getattr(iterator, "_workers", ())
    if not workers or iterator._shutdown or (iterator._persistent_workers and not for_good):
        return ()
    return workers


def dismiss_workers(iterator: Any, for_good: bool = True) -> None:
    """Tell the workers that no more is read, and wait for none of them."""
    if _workers_to_end(iterator, for_good):
        iterator._workers_done_event.set()
        for queue in iterator._index_queues:
            queue.put(None)


def end_workers(iterator: Any, for_good: bool = True) -> None:
    """Dismiss the workers, and see that they end."""
    workers = _workers_to_end(iterator, for_good)
    if not workers:
        return
    pins = getattr(iterator, "_pin_memory_thread", None)
    if pins is not None:  # no worker may end while it reads what that one sends
        iterator._pin_memory_thread_done_event.set()
        iterator._worker_result_queue.put((None, None))
        pins.join(_PATIENCE)
    dismiss_workers(iterator, for_good)
    patience = time.monotonic() + _PATIENCE
    for worker in workers:
        worker.join(max(patience - time.monotonic(), 0))
    for worker in [w for w in workers if w.is_alive()]:  # in a read that does not end; deaf to SIGTERM
        worker.kill()
    iterator._shutdown_workers()


def _with_workers(make: Callable[[], Any], give_up: Callable[[], None]) -> Any:
    """An iterator whose dead worker is an error of the read that needs it, not of any moment."""
    usual = signal_handling._set_worker_pids
    # With the workers' ids torch raises out of a handler of SIGCHLD, wherever the main thread is.
    signal_handling._set_worker_pids = lambda *ids: None
    try:
        iterator = make()
    finally:
        signal_handling._set_worker_pids = usual
    if getattr(iterator, "_worker_pids_set", False):
        iterator._worker_pids_set = False
    for worker in getattr(iterator, "_workers", ()):
        _end_by_kill(worker._popen)
    prepare_pipe(iterator)
    if hasattr(iterator, "_try_get_data"):
        iterator._try_get_data = _in_slices(weakref.ref(iterator), give_up)
    return iterator


def _end_by_kill(process: Any) -> None:
    """Workers are deaf to SIGTERM, with which torch ends them and Python's exit does before it waits."""
    kill = weakref.WeakMethod(process.kill)
    process.terminate = lambda: kill()()  # type: ignore[misc]


def _in_slices(iterator: Callable[[], Any], give_up: Callable[[], None]) -> Callable[..., tuple[bool, Any]]:
    """Stands where an iterator's ``_try_get_data`` was: waits as long, and asks now and then whether to."""
    wait = type(iterator())._try_get_data

    def waits(timeout: float = MP_STATUS_CHECK_INTERVAL) -> tuple[bool, Any]:
        end = time.monotonic() + timeout
        while True:
            give_up()
            left = end - time.monotonic()
            came: tuple[bool, Any] = wait(iterator(), timeout=min(max(left, 0.0), _SLICE))
            if came[0] or left <= _SLICE:
                return came

    return waits


def reads_plainly(dataset: Any) -> bool:
    """True for datasets that cannot draw: tensors, lists, and torch's subsets of them."""
    kind = type(dataset)
    if kind is Subset:
        return reads_plainly(dataset.dataset)
    if kind is ConcatDataset:
        return all(reads_plainly(d) for d in dataset.datasets)
    return kind in (TensorDataset, Tensor, list, tuple)


def may_draw(loader: DataLoader[Any]) -> bool:
    """Whether reading a batch can draw random numbers, in the dataset or in collating."""
    plain_collate = loader.collate_fn in (default_collate, default_convert)
    return not (plain_collate and reads_plainly(loader.dataset))
