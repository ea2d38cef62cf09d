"""Steps of a map-style DataLoader, in exact order, from any position, at no reading cost."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from ...common.checksums import crc32
from ...errors import PacelineError
from ...strategies.machine.devices import pins
from ...strategies.ranks.comparison import gather_alike, same_everywhere
from ..utils.nested import count_samples
from .batch_plan import Layout, Piece
from .batch_reader import BatchReader, LoaderCopy, LoaderReader, RowReader, has_own_iter
from .epoch_order import EpochOrder, drawn
from .feed import Feed, FeedSettings, MicroBatches, limited, refuse_global_batch
from .fingerprint import content_of
from .read_errors import DataErrors
from .seeded_loader import SeededDataset
from .tensor_dataset import Rows, is_read_by_rows


class MapFeed(Feed):
    """Reads a shallow copy of the user's loader whose batch sampler gives exactly the step's samples.

    A custom batch sampler's batches, and the items of a loader that does not collate, are units: they
    are not cut, and a step is ``accumulate x world`` of them.
    """

    def __init__(self, loader: DataLoader[Any], settings: FeedSettings) -> None:
        super().__init__(settings)
        self.data = loader
        self._collates = loader.batch_sampler is not None
        self._errors = DataErrors(settings.on_error, settings.log_line)
        own_iter = has_own_iter(loader)
        if self._errors.skips and (own_iter or not self._collates):
            raise PacelineError(
                'on_data_error="skip" takes a DataLoader that collates samples, with an __iter__ of torch',
                code="skip-not-possible",
                got=type(loader).__name__ if own_iter else "batch_size=None",
                fix='on_data_error="retry"',
            )
        plain = type(loader.batch_sampler) is BatchSampler
        self._units = not plain
        rank = settings.ranks.data_rank if settings.simulated_ranks == 1 else None
        world_size = settings.ranks.data_world_size * settings.simulated_ranks
        if self._units:
            refuse_global_batch(settings, "the loader's batch sampler makes the batches")
            self._sampler: Any = loader.batch_sampler if self._collates else loader.sampler
            self._layout = Layout(1, settings.accumulate, None, rank, world_size)
        else:
            batches: Any = loader.batch_sampler
            self._sampler = batches.sampler
            self._layout = Layout(
                batches.batch_size,
                settings.accumulate,
                settings.global_batch,
                rank,
                world_size,
                batches.drop_last,
            )
        self._batch_size = self._layout.micro_batch
        self._order: EpochOrder | None = None
        self._cut_again = False
        self._compares = settings.ranks.world_size > 1
        self._pieces: list[Piece] = []
        self._span = (0, 0)  # of the step under way, in the order
        self._reader: BatchReader | None = None
        self._pins = loader.pin_memory and pins()
        self._by_rows = is_read_by_rows(loader)
        self._copied = LoaderCopy.of(loader, self._by_rows, self._errors.skips)
        total = self._length()
        self.steps_per_epoch = None if total is None else self._layout.steps(self._cut(total))
        self.step_size = None if self._units else self._layout.step_size
        self._count_micro_batches()
        if isinstance(self._sampler, DistributedSampler):
            settings.log_line("DistributedSampler: its order over all ranks is used, each sample once")

    def use_micro_batches(self, size: int) -> None:
        if self._units:
            super().use_micro_batches(size)
        self._layout = replace(self._layout, micro_batch=size, global_batch=self.step_size)
        self._cut_again = True
        self._count_micro_batches()

    def _count_micro_batches(self) -> None:
        total = self._length()
        self.micro_batches = self._layout.micro_batches(self._layout.step_size)
        if total is not None and self.step_size is not None:
            rest = 0 if self._layout.drop_last else self._cut(total) % self.step_size
            pieces = self.micro_batches * self.settings.ranks.data_world_size
            self.even = not rest and self.step_size % pieces == 0

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
        one_batch = self._batch_size * (self._layout.world_size if self.settings.limit_per_rank else 1)
        return min(items, limited(-(-items // one_batch), self.settings.limit) * one_batch)

    def _compare(self, order: Sequence[Any], epoch: int) -> None:
        """See that all ranks go by one order.

        Raises:
            PacelineError: on every rank, when a sampler gives each another.
        """
        if self.settings.ranks.world_size == 1:
            return
        raw = order if isinstance(order, array) else repr(order).encode()
        address = not isinstance(raw, array) and b" at 0x" in raw  # an address, not content
        mine = 0 if address else crc32(raw)
        if not same_everywhere(self.settings.ranks, mine):
            found = gather_alike(self.settings.ranks, mine)
            rank = next(r for r, other in enumerate(found) if other != found[0])
            maker = type(self._sampler).__name__
            raise PacelineError(
                f"{maker} gives rank {rank} another order of epoch {epoch + 1} than rank 0",
                code="ranks-read-differently",
                fix="a sampler gives the order of all samples, the same everywhere; the trainer cuts it. "
                "Draw from torch, random or numpy, or a generator it keeps; do not shard by rank",
            )

    def _compare_sample(self, index: Any) -> None:
        """See that the first sample is the same on all ranks, where it is computed; the log has a warning.

        It is no error: a sample may have something of its rank on purpose.
        """
        dataset, kind = self._copied.loader.dataset, type(self.data.dataset).__name__
        mine = dataset.probed if isinstance(dataset, SeededDataset) else None
        if same_everywhere(self.settings.ranks, mine):
            return
        found = gather_alike(self.settings.ranks, mine)
        index = index[0] if self._units else index
        for rank, other in enumerate(found):
            if None not in (other, found[0]) and other != found[0]:
                self.settings.log_line(
                    f"warning: sample {index} of {kind} on rank {rank} is not the one that rank 0 has. "
                    "A tokenizer or a vocabulary that each rank makes for itself may be another one on "
                    "each: make it in prepare_data, and load its file on all ranks"
                )
                return

    def steps(self, epoch: int, position: int = 0) -> Iterator[MicroBatches]:
        again, self._cut_again = self._cut_again, False
        seed, data_epoch = self.settings.seed, 0 if self.settings.fixed_order else epoch
        if again and self._order is not None and self._order.epoch == epoch:
            items = self._order.items  # a sampler that keeps a state would give others
        else:
            source = (self.data, self._sampler, self._units)
            items = self.settings.signals.call_interruptible(drawn, *source, seed, data_epoch)
            self._compare(items, epoch)
        total = self._cut(len(items))
        order = EpochOrder(items, total, self._layout, seed, epoch, self._units, self._collates, data_epoch)
        start = order.start_of(position)
        if self._reader is not None:  # of a pass that was broken off
            self._reader.close(for_good=False)
        self._order, self._reader = order, self._open(order, start)
        reader = self._reader
        try:
            yield from self._read_steps(order, start, reader)
        finally:
            if self._reader is reader:
                reader.close(for_good=False)

    def _open(self, order: EpochOrder, start: int) -> BatchReader:
        loader = self.data
        if self._by_rows and not self._units and not loader.num_workers:
            rows = Rows.of(loader.dataset)
            row_of = None if rows is None else rows.rows_of(order.items)
            if rows is not None and row_of is not None:
                return RowReader(rows, row_of, self._pins)
        return LoaderReader(self._copied, order, start, self._errors, self.settings)

    def _read_steps(self, order: EpochOrder, start: int, reader: BatchReader) -> Iterator[MicroBatches]:
        plan, sizes, first = self._layout.epoch(order.total, start), order.sizes, start
        upcoming = next(plan, None)
        self.ended = upcoming is None
        while upcoming is not None:
            (advance, pieces), upcoming = upcoming, next(plan, None)
            self.ended, self._pieces = upcoming is None, pieces
            self._span = first, first + advance
            read = [reader.read(piece, number, first) for number, piece in enumerate(pieces)]
            if self._compares:
                self._compares = False
                self._compare_sample(order.items[first])
            batches = [
                self._moved(batch, order.epoch, piece.start if piece.size else first)
                for piece, (batch, _) in zip(pieces, read, strict=True)
            ]
            moved = advance if sizes is None else sum(sizes[first : first + advance])
            first += advance
            if sizes is None and not self._errors.skips:
                yield MicroBatches(batches, [p.size for p in pieces], advance, advance)
                continue
            mine = [
                self._size(p, b, sizes) - (missing if p.size else 0)
                for p, (b, missing) in zip(pieces, read, strict=True)
            ]
            alone = sum(mine) if self.settings.ranks.data_world_size == 1 else None
            known = self._collates and not self._errors.skips
            yield MicroBatches(batches, mine, moved if known else alone, moved)

    def _size(self, piece: Piece, batch: Any, sizes: Sequence[int] | None) -> int:
        if not piece.size or sizes is None:
            return piece.size
        return sizes[piece.start] if self._collates else count_samples(batch)

    def samples_of(self, micro_batch: int) -> list[Any]:
        return [] if self._order is None else self._order.samples_of(self._pieces[micro_batch])

    def step_samples(self) -> Sequence[Any]:
        return () if self._order is None else self._order.items[slice(*self._span)]

    def fingerprint(self) -> dict[str, Any]:
        dataset = self.data.dataset
        return {"dataset": type(dataset).__name__, "samples": self._length()} | content_of(dataset)

    def state_dict(self) -> dict[str, Any]:
        return self._errors.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._errors.load_state_dict(state)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
