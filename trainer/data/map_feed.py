"""Steps of a map-style DataLoader, in exact order, from any position, at no reading cost."""

from __future__ import annotations

import copy
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from ...errors import PacelineError
from ...faultpoints import faultpoint
from ...strategies.devices import pins
from ..rng import (
    cpu_state,
    derive,
    generators_of,
    order_seed,
    seed_for_sample,
    seed_generator,
    set_cpu_state,
)
from ..utils.nested import count_samples
from .batch_plan import Layout, Piece
from .feed import Feed, FeedSettings, Step, limited, refuse_global_batch
from .fingerprint import content_of
from .loader_reader import Reader, open_reader
from .read_errors import Collate, DataErrors, Delivered, name_sample
from .seeded_loader import (
    Place,
    PlacedIndex,
    PlacedIndices,
    SeededDataset,
    Source,
    may_draw,
    private_copy,
)
from .tensor_dataset import Rows, RowsDataset, handed_on, is_read_by_rows
from .worker_processes import processes_of


class MapFeed(Feed):
    """Reads a shallow copy of the user's loader whose batch sampler gives exactly the step's samples.

    A custom batch sampler's batches, and the items of a loader that does not collate, are units: they
    are not cut, and a step is ``accumulate x world`` of them.
    """

    def __init__(self, loader: DataLoader[Any], settings: FeedSettings) -> None:
        super().__init__(settings)
        self.data = loader
        self._collates = loader.batch_sampler is not None
        self._errors = DataErrors(settings.on_error, settings.say)
        self._own_iter = type(loader).__iter__ is not DataLoader.__iter__
        if self._errors.skips and (self._own_iter or not self._collates):
            raise PacelineError(
                'on_data_error="skip" takes a DataLoader that collates samples, with an __iter__ of torch',
                got=type(loader).__name__ if self._own_iter else "batch_size=None",
                fix='on_data_error="retry"',
            )
        plain = type(loader.batch_sampler) is BatchSampler
        self._units = not plain
        rank = settings.rank if settings.in_turn == 1 else None
        world = settings.world * settings.in_turn
        if self._units:
            refuse_global_batch(settings, "the loader's batch sampler makes the batches")
            self._sampler: Any = loader.batch_sampler if self._collates else loader.sampler
            self._layout = Layout(1, settings.accumulate, None, rank, world)
        else:
            batches: Any = loader.batch_sampler
            self._sampler = batches.sampler
            self._layout = Layout(
                batches.batch_size,
                settings.accumulate,
                settings.global_batch,
                rank,
                world,
                batches.drop_last,
            )
        self._order: Sequence[Any] = ()
        self._rows: Rows | None = None  # of an epoch that is read without the loader
        self._row_of: Tensor | None = None
        self._pieces: list[Piece] = []
        self._source = Source()
        self._reader: Reader | None = None
        self._pass: object = None
        self._pins = loader.pin_memory and pins()
        self._by_rows = is_read_by_rows(loader)
        self._loader = self._copy(loader)
        self._workers = processes_of(self._loader)
        self._drawn_here = self._own_iter or (may_draw(loader) and loader.num_workers == 0)
        total = self._length()
        self.steps_per_epoch = None if total is None else self._layout.steps(self._cut(total))
        self.step_size = None if self._units else self._layout.step_size
        self.micro_batches = self._layout.micro_batches(self._layout.step_size)
        if isinstance(self._sampler, DistributedSampler):
            settings.say("DistributedSampler: its order over all ranks is used, each sample once")

    def _copy(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        duplicate = private_copy(loader)
        inside = vars(duplicate)
        inside["batch_sampler" if self._collates else "sampler"] = self._source
        if self._by_rows:
            inside["dataset"], inside["collate_fn"] = RowsDataset(loader.dataset), handed_on
        elif may_draw(loader):
            skips = self._errors.skips and self._collates
            inside["dataset"] = SeededDataset(loader.dataset, loader.num_workers, skips)
            if skips:
                inside["collate_fn"] = Collate(loader.collate_fn)
        return duplicate

    def _length(self) -> int | None:
        if isinstance(self._sampler, DistributedSampler):
            return len(self._sampler.dataset)  # type: ignore[arg-type]
        try:
            return len(self._sampler)
        except (TypeError, NotImplementedError):
            return None

    def _cut(self, items: int) -> int:
        """Items of the order an epoch takes, under the limit on batches."""
        if self.settings.limit is None:
            return items
        one_batch = self._layout.micro_batch * (self._layout.world if self.settings.limit_per_rank else 1)
        return min(items, limited(-(-items // one_batch), self.settings.limit) * one_batch)

    def order(self, epoch: int) -> Sequence[Any]:
        """The order of an epoch: sample indices, or units. The same on every rank."""
        if self.settings.fixed_order:
            epoch = 0
        loader, seed = self.data, order_seed(self.settings.seed, epoch)
        inner = getattr(loader.batch_sampler, "sampler", None)
        # The sampler of a batch sampler that was given is not loader.sampler; none is told twice.
        owners = (loader, loader.dataset, loader.sampler, loader.batch_sampler, inner)
        for owner in {id(o): o for o in owners}.values():
            set_epoch = getattr(owner, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)
        before = cpu_state()
        try:
            seed_for_sample(seed)
            for generator in generators_of(loader, loader.sampler, loader.batch_sampler):
                seed_generator(generator, seed)
            # An iterating DataLoader draws its workers' seed first: so do we, and the order is
            # the one that the loader itself would give under this seed.
            items = (
                None
                if isinstance(self._sampler, DistributedSampler) or not self._units
                else iter(self._sampler)
            )
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            return _collected(self._sampler if items is None else items, self._units)
        finally:
            set_cpu_state(before)

    def _compare(self, order: Sequence[Any], epoch: int) -> None:
        """See that all ranks go by one order.

        Raises:
            PacelineError: on every rank, when a sampler gives each another.
        """
        if self.settings.world == 1:
            return
        raw = order if isinstance(order, array) else repr(order).encode()
        address = not isinstance(raw, array) and b" at 0x" in raw  # says nothing of what is there
        found = self.settings.gather(0 if address else zlib.crc32(raw))
        rank = next((r for r, other in enumerate(found) if other != found[0]), None)
        if rank is not None:
            maker = type(self._sampler).__name__
            raise PacelineError(
                f"{maker} gives rank {rank} another order of epoch {epoch + 1} than rank 0",
                fix="a sampler gives the order of all samples, the same everywhere; the trainer cuts it. "
                "Draw from torch, random or numpy, or a generator it keeps; do not shard by rank",
            )

    def steps(self, epoch: int, position: int = 0) -> Iterator[Step]:
        self._order = order = self.order(epoch)
        self._compare(order, epoch)
        sizes = self._unit_sizes(order)
        total = self._cut(len(order))
        start = position
        if sizes is not None:
            ends = list(accumulate(sizes, initial=0))
            start = bisect_left(ends, position)
        self._close(for_good=False)  # a pass that was broken off
        self._open(epoch, start, total)
        this_pass = self._pass = object()
        try:
            yield from self._read_steps(epoch, start, total, sizes)
        finally:
            if self._pass is this_pass:
                self._close(for_good=False)

    def _read_steps(
        self, epoch: int, start: int, total: int, sizes: Sequence[int] | None
    ) -> Iterator[Step]:
        plan = self._layout.epoch(total, start)
        begun = start
        upcoming = next(plan, None)
        self.ended = upcoming is None
        while upcoming is not None:
            (advance, pieces), upcoming = upcoming, next(plan, None)
            self.ended, self._pieces = upcoming is None, pieces
            read = [self._read_piece(p, n, (epoch, begun, total)) for n, p in enumerate(pieces)]
            batches = [self._moved(batch) for batch, _ in read]
            moved = advance if sizes is None else sum(sizes[begun : begun + advance])
            begun += advance
            if sizes is None and not self._errors.skips:
                yield batches, [p.size for p in pieces], advance, advance
                continue
            mine = [
                self._size(p, b, sizes) - (missing if p.size else 0)
                for p, (b, missing) in zip(pieces, read, strict=True)
            ]
            alone = sum(mine) if self.settings.world == 1 else None
            known = self._collates and not self._errors.skips
            yield batches, mine, moved if known else alone, moved

    def _open(self, epoch: int, start: int, total: int, passed: int = 0) -> None:
        """Begin to read at a step, behind so many of its micro-batches."""
        if isinstance(self._loader.dataset, RowsDataset):
            self._loader.dataset.forget()
        self._rows = self._find_rows()
        if self._rows is not None:
            return
        self._source.make = lambda: islice(self._indices(epoch, start, total), passed, None)
        self._source.length = self._layout.micro_batches(total, start) - passed
        assert self._loader.generator is not None
        self._loader.generator.manual_seed(order_seed(self.settings.seed, epoch))
        self._reader = open_reader(self._loader, self.settings.signals, self._workers)

    def _find_rows(self) -> Rows | None:
        """What an epoch is read from in this process, a batch in one piece; None: from the loader."""
        loader = self.data
        if not self._by_rows or self._units or loader.num_workers:
            return None
        rows = Rows.of(loader.dataset)
        self._row_of = None if rows is None else rows.rows_of(self._order)
        return None if self._row_of is None else rows

    def _read_piece(self, piece: Piece, number: int, step: tuple[int, int, int]) -> tuple[Any, int]:
        """A micro-batch, and how many of its samples could not be read.

        Args:
            number: Which one of the step it is.
            step: Epoch, start and the epoch's end, for another reader to begin at.
        """
        if self._rows is not None:
            faultpoint("data.read")
            assert self._row_of is not None
            at = piece.start if piece.size else step[1]
            rows = self._row_of[at : at + max(piece.size, 1)]
            return self._rows.read(rows, self._pins), 0
        tries = 0
        while True:
            assert self._reader is not None
            try:
                batch = self._read(self._reader, self._isolation(step[0], piece.start))
                break
            except StopIteration:
                raise PacelineError(
                    f"{type(self.data).__name__} ended before its sampler did",
                    fix="a loader's __iter__ must give one batch for each batch of its batch sampler",
                ) from None
            except Exception as error:
                worker_died = name_sample(error, self._reader.ended, self._place_of)
                if not self._errors.repeats(error, tries, worker_died):
                    raise
            tries += 1
            self._close()
            self._open(*step, passed=number)
        return self._errors.unpack(batch) if isinstance(batch, Delivered) else (batch, 0)

    def _place_of(self, worker: int) -> str:
        """What a worker was reading."""
        dataset = self._loader.dataset
        if self._units or not isinstance(dataset, SeededDataset):
            return "in the midst of its work"
        return f"while reading dataset index {self._order[dataset.position_of(worker)]}, or one near it"

    def _isolation(self, epoch: int, start: int) -> Callable[[], None] | None:
        """What to seed before a read; None where a read cannot draw in this process."""
        if not self._drawn_here:
            return None
        # The dataset seeds its own samples; a subclass's __iter__ draws outside of it.
        seed = derive(self.settings.seed, epoch, start)
        return lambda: seed_for_sample(seed) if self._own_iter else None

    def _size(self, piece: Piece, batch: Any, sizes: Sequence[int] | None) -> int:
        if not piece.size or sizes is None:
            return piece.size
        return sizes[piece.start] if self._collates else count_samples(batch)

    def _unit_sizes(self, order: Sequence[Any]) -> Sequence[int] | None:
        if not self._units:
            return None
        return [len(unit) for unit in order] if self._collates else [1] * len(order)

    def _indices(self, epoch: int, start: int, total: int) -> Iterator[Any]:
        """What the loader is to read, micro-batch by micro-batch, each with its place."""
        order, seed = self._order, self.settings.seed
        place_start = list(accumulate(self._unit_sizes(order) or (), initial=0))
        first = start
        for advance, pieces in self._layout.epoch(total, start):
            for piece in pieces:
                at = piece.start if piece.size else first
                if not self._units:
                    part = order[at : at + max(piece.size, 1)]
                    yield _placed(list(part), Place(seed, epoch, at))
                    continue
                place = Place(seed, epoch, place_start[at])
                unit = order[at]
                if self._collates:
                    yield _placed(list(unit), place)
                else:
                    inner = isinstance(self._loader.dataset, SeededDataset)
                    yield PlacedIndex(unit, place) if inner else unit
            first += advance

    def samples_of(self, micro_batch: int) -> list[Any]:
        piece = self._pieces[micro_batch]
        items = list(self._order[piece.start : piece.start + piece.size])
        return [i for unit in items for i in unit] if self._units and self._collates else items

    def fingerprint(self) -> dict[str, Any]:
        dataset = self.data.dataset
        return {"dataset": type(dataset).__name__, "samples": self._length()} | content_of(dataset)

    def state_dict(self) -> dict[str, Any]:
        return self._errors.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._errors.load_state_dict(state)

    def close(self) -> None:
        self._close()

    def _close(self, for_good: bool = True) -> None:
        reader = self._reader
        if reader is not None:
            reader.close(for_good)
            self._reader = None if for_good else reader


def _placed(indices: list[Any], place: Place) -> PlacedIndices:
    placed = PlacedIndices(indices)
    placed.place = place
    return placed


def _collected(sampler: Any, units: bool) -> Sequence[Any]:
    """All a sampler gives; whole numbers as an array of 8 bytes each, for data sets of any size."""
    if isinstance(sampler, DistributedSampler):
        return _over_all_ranks(sampler)
    items = iter(sampler)
    first = next(items, None)
    if first is None:
        return ()
    if units or type(first) is not int:
        return list(chain([first], items))
    return array("q", chain([first], items))


def _over_all_ranks(sampler: DistributedSampler[Any]) -> Sequence[int]:
    """A DistributedSampler's order before it was cut among ranks, its padding dropped."""
    whole = copy.copy(sampler)
    whole.num_replicas, whole.rank = 1, 0
    whole.total_size = whole.num_samples = len(sampler.dataset)  # type: ignore[arg-type]
    return array("q", iter(whole))
