"""The pieces put into a shallow copy of the user's DataLoader so that it reads in exact order.

The user's dataset, collate function, workers and subclass stay; only the batch sampler is replaced, and,
where something may draw random numbers, the dataset is wrapped so that each sample is read under its own
seed.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
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

from ...strategies.torch_internals import drop_iterator
from ..faults.signals import WATCHED
from ..rng import NONE, Generators, derive, deriver, drawn_since, seed_for_sample, seeder
from ..utils.nested import listed
from ..utils.tensor_checksum import exact_parts_of
from .dataset_proxy import DatasetProxy
from .mixtures.mixture import Mixture
from .read_errors import Samples
from .seeded_stream import SeededStream, watch_worker
from .workers.worker_processes import end_with_parent
from .workers.worker_tensors import stack_in_own_memory


class SamplePosition(NamedTuple):
    """Where a micro-batch lies: what its samples' seeds are derived from."""

    seed: int
    epoch: int
    start: int


class SeededIndices(list[Any]):
    """The indices of one micro-batch, with the position they are seeded by, and the dataset's epoch.

    ``probe``, where it is given, is the index and the place of a sample that all ranks read.
    """

    origin: SamplePosition
    data_epoch: int
    probe: tuple[Any, SamplePosition] | None = None


class SeededIndex(NamedTuple):
    """One index of a loader that does not collate, likewise."""

    index: Any
    origin: SamplePosition
    data_epoch: int


class SeededDataset(DatasetProxy, Dataset[Any]):
    """Reads each sample under a seed of (seed, epoch, position): no worker count can change a draw.

    torch's generator is seeded for each sample: one may look at its seed. Seeding those of ``random`` and
    numpy costs more than many a sample: it begins when one was seen to draw from them, and the batch where
    that was is read again. A dataset that defines ``__getitems__`` is read by the micro-batch, as long as
    nothing is drawn.

    Args:
        workers: How many read it.
        skips: A sample that cannot be read is skipped.
        collating_draws: Whether the collate function, which is called next, may draw.
    """

    def __init__(
        self, dataset: Any, workers: int = 0, skips: bool = False, collating_draws: bool = True
    ) -> None:
        self._collating_draws = collating_draws
        # A Mixture may be read by another loader too, such as that of the validation, in another epoch.
        self._own = isinstance(dataset, Mixture)
        self.inner, self._skips = copy.copy(dataset) if self._own else dataset, skips
        # Where each worker is: what is left to see of one that was killed. And what was seen to be drawn.
        self._at = multiprocessing.RawArray("q", workers) if workers else None
        self._drawn: Any = multiprocessing.RawArray("b", 3) if workers else [False] * 3
        self._plain = reads_plainly(dataset)
        own = getattr(dataset, "__getitems__", None)
        self._takes_batches = callable(own) and not isinstance(dataset, Subset)
        # Of the sample that all ranks read: whether it was, whether twice alike, and its checksum.
        self._probed: Any = multiprocessing.RawArray("q", 3) if workers else [0] * 3
        self._epoch: int | None = None

    def __getitem__(self, item: SeededIndex) -> Any:
        self._set_epoch(item.data_epoch)
        seed_for_sample(derive(*item.origin))
        try:
            return self.inner[item.index]
        except Exception as error:
            error.add_note(f"while reading dataset index {item.index}")
            raise

    def __getitems__(self, indices: SeededIndices) -> Any:
        origin = indices.origin
        self._set_epoch(indices.data_epoch)
        if indices.probe is not None and not self._probed[0]:
            self._probed[0] = 1
            with suppress(Exception):  # where it belongs, it is read again
                first, again = self._probe(*indices.probe), self._probe(*indices.probe)
                self._probed[2], self._probed[1] = first, int(first == again)
        # A collate function may draw: whatever is seeded for samples, it finds what the last one found.
        seed = derive(origin.seed, origin.epoch, origin.start + len(indices) - 1)
        seed_for_sample(seed)
        if self._plain:
            return self._read_samples(indices, origin, NONE)
        while True:
            drawn = tuple(map(bool, self._drawn))
            by_batch = self._takes_batches and not any(drawn) and not self._skips
            seeded = NONE if by_batch else (True, drawn[1], drawn[2])
            failed, found = None, None
            try:
                if by_batch:
                    found = self._read_batch(indices, origin.start)
                else:
                    found = self._read_samples(indices, origin, seeded)
            except Exception as error:
                failed = error
            of_batch = by_batch and found is not None and not isinstance(found, (list, tuple))
            new = NONE if of_batch else self._drawn_since(seed, seeded)
            if any(new):
                for kind, is_new in enumerate(new):
                    self._drawn[kind] = is_new or drawn[kind]
                seed_for_sample(seed)
            elif failed is not None:
                raise failed
            else:
                return found

    def _drawn_since(self, seed: int, seeded: Generators) -> Generators:
        """Of the generators that were not seeded for each sample, those that samples drew from."""
        others = not seeded[0], not seeded[1], not seeded[2]
        return drawn_since(seed, others, self._collating_draws)

    @property
    def probed(self) -> int | None:
        """A checksum of the sample that all ranks read; None where that is not the same at each read."""
        return int(self._probed[2]) if self._probed[1] else None

    def _probe(self, index: Any, place: SamplePosition) -> int:
        seed_for_sample(derive(*place))
        inner = self.inner
        return exact_parts_of(inner.__getitems__([index])[0] if self._takes_batches else inner[index])

    def _read_batch(self, indices: list[Any], start: int) -> Any:
        self._note(None if self._at is None else get_worker_info(), start)
        try:
            return self.inner.__getitems__(list(indices))
        except Exception as error:
            error.add_note(f"while reading dataset indices {listed(indices)}")
            raise

    def _read_samples(self, indices: list[Any], origin: SamplePosition, seeded: Generators) -> list[Any]:
        """Sample by sample, these generators seeded for each."""
        inner, takes_batches = self.inner, self._takes_batches
        seed = seeder(seeded) if any(seeded) else None
        worker = None if self._at is None else get_worker_info()
        seed_of = deriver(origin.seed, origin.epoch)
        found = Samples()
        for position, index in enumerate(indices, origin.start):
            if seed is not None:
                seed(seed_of(position))
            if worker is not None:
                self._note(worker, position)
            try:
                found.append(inner.__getitems__([index])[0] if takes_batches else inner[index])
            except Exception as error:
                if not self._skips:
                    error.add_note(f"while reading dataset index {index}")
                    raise
                found.skipped.append((index, f"{type(error).__name__}: {error}"[:200]))
        return found if self._skips else list(found)

    def _note(self, worker: Any, position: int) -> None:
        if worker is not None and self._at is not None:
            self._at[worker.id] = position

    def position_of(self, worker: int) -> int:
        """Which position of the epoch's order a worker was last at."""
        return 0 if self._at is None else int(self._at[worker])

    def _set_epoch(self, epoch: int) -> None:
        """A persistent worker has its own copy of the dataset, which must be given a new epoch too."""
        if epoch == self._epoch:
            return
        self._epoch = epoch
        set_epoch = getattr(self.inner, "set_epoch", None)
        if callable(set_epoch) and (self._own or get_worker_info() is not None):
            set_epoch(epoch)


class ReadHere:
    """What iterating over a loader of a ``SeededDataset`` does without workers, and no more."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        assert loader.batch_sampler is not None
        self._indices = iter(loader.batch_sampler)
        self._read, self._collate = loader.dataset.__getitems__, loader.collate_fn  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._collate(self._read(next(self._indices)))


def begin_here(loader: DataLoader[Any]) -> Iterator[Any]:
    """An iterator over a loader without workers."""
    ours = type(loader) is DataLoader and isinstance(loader.dataset, SeededDataset)
    plain = ours and loader.batch_sampler is not None and not loader.pin_memory
    return ReadHere(loader) if plain else iter(loader)


class WorkerInit:
    """Runs in each loader worker: leaves signals to the main process, shows user code its own dataset.

    It runs on the CPUs of the main process, also where a fork server has others, and ends when the main
    process has ended. Small tensors go there by value (``worker_tensors.py``).
    """

    def __init__(self, users: Callable[[int], None] | None) -> None:
        self._users = users
        self._cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None

    def __call__(self, worker_id: int) -> None:
        if self._cpus is not None and os.sched_getaffinity(0) != self._cpus:
            with suppress(OSError):
                os.sched_setaffinity(0, self._cpus)
        end_with_parent()
        stack_in_own_memory()
        for number in WATCHED:  # they often go to whole process groups, and mean the rank
            signal.signal(number, signal.SIG_IGN)
        info = get_worker_info()
        dataset = None if info is None else info.dataset
        if isinstance(dataset, DatasetProxy):
            object.__setattr__(info, "dataset", dataset.inner)  # it forbids plain assignment
        watched = watch_worker(info) if isinstance(dataset, SeededStream) else None
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


def private_copy(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A shallow copy with its own workers and generator; the user's loader stays as it is.

    ``vars(copy)`` is where more is replaced: DataLoader forbids assigning most of it after construction,
    to keep users from half-changing one.
    """
    duplicate = copy.copy(loader)
    inside = vars(duplicate)
    inside["generator"] = torch.Generator()
    drop_iterator(duplicate)
    inside["in_order"] = True  # else the order is that of the fastest worker, another on each rank
    if loader.num_workers:
        inside["worker_init_fn"] = WorkerInit(loader.worker_init_fn)
    return duplicate


def reads_plainly(dataset: Any) -> bool:
    """True for datasets that cannot draw: tensors, lists, and torch's subsets of them."""
    kind = type(dataset)
    if kind is Subset:
        return reads_plainly(dataset.dataset)
    if kind in (ConcatDataset, Mixture):
        return all(reads_plainly(d) for d in dataset.datasets)
    return kind in (TensorDataset, Tensor, list, tuple)


def may_draw(loader: DataLoader[Any]) -> bool:
    """Whether reading a batch can draw random numbers, in the dataset or in collating.

    Or depends on the epoch, which workers that live on must be given with each batch too.
    """
    by_epoch = hasattr(loader.dataset, "set_epoch")
    return by_epoch or collates_freely(loader) or not reads_plainly(loader.dataset)


def collates_freely(loader: DataLoader[Any]) -> bool:
    """Whether the collate function is the user's, and may draw random numbers."""
    return loader.collate_fn not in (default_collate, default_convert)
