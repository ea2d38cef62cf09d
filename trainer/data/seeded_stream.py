"""Reads an IterableDataset so that each sample comes once, and its place alone decides what it draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ...errors import PacelineError
from ...strategies.torch_internals import set_worker_info
from ..rng import derive, seed_for_sample
from .dataset_proxy import DatasetProxy
from .mixtures.mixture_stream import MixtureStream


class SeededStream(DatasetProxy, IterableDataset[Any]):
    """Stands where the user's dataset was, in this process or in each loader worker.

    A dataset that asks which worker reads it shares itself out, and so may a ``worker_init_fn``. One that
    does not would give each worker all of it: there each worker keeps its batches' samples
    only, so that together they give the order of one.

    Args:
        sizes: The samples of each batch that is asked for.
        workers: How many there are.
    """

    def __init__(self, dataset: Any, seed: int, sizes: Iterable[int], workers: int = 0) -> None:
        self.inner, self.seed, self.sizes = dataset, seed, sizes
        # Epoch, position, and whether each worker reads all: workers that live on see it change.
        self._shared = torch.zeros(3, dtype=torch.int64)
        if workers:
            self._shared.share_memory_()

    def begin(self, epoch: int, position: int) -> None:
        """The next pass is of this epoch, and its first sample is that of ``position``."""
        self._shared[0], self._shared[1] = epoch, position

    @property
    def read_by_each(self) -> bool:
        """Whether each of several workers reads all of it; known after the first batch."""
        return bool(self._shared[2])

    def __iter__(self) -> Iterator[Any]:
        epoch, position = self._shared[:2].tolist()
        start = position
        watched: Any = get_worker_info()
        worker, workers = (0, 1) if watched is None else (watched.original.id, watched.original.num_workers)
        part: list[int] = []  # the worker, once the dataset has asked which one it is

        def seed() -> None:
            seed_for_sample(derive(self.seed, epoch, position, *part))

        def asked() -> None:
            if part:
                return
            if isinstance(self.inner, MixtureStream):
                raise PacelineError(
                    "a dataset in the Mixture calls get_worker_info(), as if to read a part of its samples",
                    code="worker-info",
                    got=f"{workers} workers",
                    fix="num_workers=1, or let it read all of its samples in each worker",
                )
            if position > start:
                raise PacelineError(
                    f"{type(self.inner).__name__} calls get_worker_info() only after its first sample",
                    code="worker-info",
                    fix="call get_worker_info() at the beginning of __iter__",
                )
            part.append(worker)
            seed()

        if workers > 1:
            if watched.asked:  # in an earlier epoch too: it may have kept its part
                part.append(worker)
            watched.when_asked = asked
        if watched is not None:
            set_epoch = getattr(self.inner, "set_epoch", None)
            if callable(set_epoch):  # a persistent worker has its own copy of the dataset
                set_epoch(epoch)
        seed()
        samples = iter(self.inner)
        mine = self._turns(worker, workers)
        while True:
            seed()
            try:
                sample = next(samples)
            except StopIteration:
                return
            position += 1
            if workers == 1 or part:
                yield sample
                continue
            self._shared[2] = 1
            turn = next(mine, None)
            if turn is None:  # after the last batch that is asked for
                return
            if turn:
                yield sample

    def _turns(self, worker: int, workers: int) -> Iterator[bool]:
        """For each sample, whether it is in a batch of this worker: batches go round."""
        for batch, size in enumerate(self.sizes):
            yield from repeat(batch % workers == worker, size)


class WatchedInfo:
    """What ``get_worker_info`` gives in a worker: knows whether somebody asked which of how many it is.

    Attributes:
        original: torch's own.
        asked: Whether anybody has, in this worker's life.
        initialising: While ``worker_init_fn`` runs, which gives a part through ``dataset``.
        when_asked: Called whenever somebody does.
    """

    def __init__(self, info: Any) -> None:
        self.original, self.asked, self.initialising = info, False, False
        self.when_asked: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        if name in ("id", "num_workers") or (name == "dataset" and self.initialising):
            self.asked = True
            self.when_asked()
        return getattr(self.original, name)


def watch_worker(info: Any) -> WatchedInfo:
    """Let ``get_worker_info`` give a ``WatchedInfo`` from now on, in this worker.

    Nothing public shows whether a dataset calls it. To assume that it does would give each worker all of
    one that does not; to assume that it does not would drop samples of one that does.

    Raises:
        PacelineError: where a version of torch keeps it elsewhere, so that samples could be lost.
    """
    watched = WatchedInfo(info)
    set_worker_info(watched)
    seen: object = get_worker_info()
    if seen is not watched:
        raise PacelineError(
            f"torch {torch.__version__} does not show whether a dataset calls get_worker_info()",
            code="worker-info",
            fix="num_workers=1 for an IterableDataset, or the version of torch in constraints.txt",
        )
    return watched
