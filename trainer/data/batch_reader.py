"""Reads an epoch's micro-batches: from tensors in memory, or from a copy of the user's loader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from ...common.faultpoints import faultpoint
from ...errors import PacelineError
from ..rng import derive, order_seed, seed_for_sample
from .batch_plan import Piece
from .epoch_order import EpochOrder
from .feed import FeedSettings, read_isolated
from .read_errors import Collate, DataErrors, Delivered, explain_samples, name_sample
from .seeded_loader import SeededDataset, Source, begin_here, collates_freely, may_draw, private_copy
from .tensor_dataset import Rows, RowsDataset, handed_on
from .workers.loader_reader import Reader, open_reader
from .workers.worker_processes import WorkerProcesses, processes_of
from .workers.worker_tensors import send_small_by_value


class BatchReader(ABC):
    """The micro-batches of one pass, one after the other."""

    @abstractmethod
    def read(self, piece: Piece, number: int, first: int) -> tuple[Any, int]:
        """A micro-batch, and how many of its samples could not be read.

        Args:
            piece: The items of the micro-batch; of size 0 where this rank has no sample.
            number: The number of the micro-batch in its step, from 0.
            first: The item at which the step begins; a rank without a sample reads that.
        """

    @abstractmethod
    def close(self, for_good: bool = True) -> None:
        """End the pass; ``for_good``: workers too that are meant to outlive it."""


class RowReader(BatchReader):
    """Selects the rows of tensors in memory, a micro-batch in one piece.

    Args:
        row_of: The row of each item of the epoch's order.
        pin: Into memory that a device can copy from while the host continues.
    """

    def __init__(self, rows: Rows, row_of: Tensor, pin: bool) -> None:
        self._rows, self._row_of, self._pin = rows, row_of, pin

    def read(self, piece: Piece, number: int, first: int) -> tuple[Any, int]:
        faultpoint("data.read")
        at = piece.start if piece.size else first
        return self._rows.read(self._row_of[at : at + max(piece.size, 1)], self._pin), 0

    def close(self, for_good: bool = True) -> None:
        pass


@dataclass(frozen=True)
class LoaderCopy:
    """The user's loader, copied so that it reads what ``source`` gives.

    Args:
        own_iter: Whether batches pass through an ``__iter__`` of the user's.
    """

    users: DataLoader[Any]
    loader: DataLoader[Any]
    source: Source
    workers: WorkerProcesses
    own_iter: bool

    @classmethod
    def of(cls, users: DataLoader[Any], by_rows: bool, skips: bool) -> LoaderCopy:
        """Copy a loader.

        Args:
            users: The user's loader, which stays as it is.
            by_rows: Its batches are rows of tensors.
            skips: Samples that cannot be read are skipped.
        """
        loader, source = private_copy(users), Source()
        inside = vars(loader)
        inside["sampler" if users.batch_sampler is None else "batch_sampler"] = source
        if by_rows:
            inside["dataset"], inside["collate_fn"] = RowsDataset(users.dataset), handed_on
        elif may_draw(users):
            draws = collates_freely(users)
            inside["dataset"] = SeededDataset(users.dataset, users.num_workers, skips, draws)
            if skips:
                inside["collate_fn"] = Collate(users.collate_fn)
        send_small_by_value(loader)
        return cls(users, loader, source, processes_of(loader), has_own_iter(users))

    @property
    def draws_here(self) -> bool:
        """Whether a read may draw from this process' generators."""
        return self.own_iter or (may_draw(self.users) and self.users.num_workers == 0)


class LoaderReader(BatchReader):
    """Reads through the loader, and again where that fails and ``on_data_error`` allows it."""

    def __init__(
        self, copied: LoaderCopy, order: EpochOrder, start: int, errors: DataErrors, settings: FeedSettings
    ) -> None:
        self._copied, self._order, self._errors, self._settings = copied, order, errors, settings
        self._draws_here = copied.draws_here
        self._reader = self._open(start)

    def _open(self, start: int, passed: int = 0) -> Reader:
        """Begin to read at a step, after so many of its micro-batches."""
        loader, source, order = self._copied.loader, self._copied.source, self._order
        if isinstance(loader.dataset, RowsDataset):
            loader.dataset.forget()
        seeded = isinstance(loader.dataset, SeededDataset)
        compares = self._settings.ranks.world_size > 1 and seeded
        source.make = lambda: islice(order.indices(start, seeded, compares), passed, None)
        source.length = order.layout.micro_batches(order.total, start) - passed
        assert loader.generator is not None
        loader.generator.manual_seed(order_seed(order.seed, order.epoch))
        return open_reader(loader, self._settings.signals, self._copied.workers, begin_here)

    def read(self, piece: Piece, number: int, first: int) -> tuple[Any, int]:
        tries = 0
        while True:
            try:
                batch = read_isolated(self._reader, self._isolation(piece.start))
                break
            except StopIteration:
                raise PacelineError(
                    f"{type(self._copied.users).__name__} ended before its sampler did",
                    code="override-incomplete",
                    fix="a loader's __iter__ must give one batch for each batch of its batch sampler",
                ) from None
            except Exception as error:
                worker_died = name_sample(error, self._reader.ended, self._place_of)
                if not self._errors.repeats(error, tries, worker_died):
                    read = self._order.items[piece.start : piece.start + piece.size]
                    explain_samples(error, self._copied.users, read)
                    raise
            tries += 1
            self._reader.close()
            self._reader = self._open(first, passed=number)
        return self._errors.unpack(batch) if isinstance(batch, Delivered) else (batch, 0)

    def _isolation(self, start: int) -> Callable[[], None] | None:
        """What to seed before a read; None where a read cannot draw in this process."""
        if not self._draws_here:
            return None
        if not self._copied.own_iter:
            return _nothing  # the dataset seeds its own samples
        return partial(seed_for_sample, derive(self._order.seed, self._order.epoch, start))

    def _place_of(self, worker: int) -> str:
        """What a worker was reading."""
        dataset = self._copied.loader.dataset
        if self._order.units or not isinstance(dataset, SeededDataset):
            return "while it was working"
        return (
            f"while reading dataset index {self._order.items[dataset.position_of(worker)]}, or one near it"
        )

    def close(self, for_good: bool = True) -> None:
        self._reader.close(for_good)


def _nothing() -> None:
    pass


def has_own_iter(loader: DataLoader[Any]) -> bool:
    """Whether batches pass through an ``__iter__`` of the user's."""
    return type(loader).__iter__ is not DataLoader.__iter__
