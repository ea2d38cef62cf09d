"""An IterableDataset read by several workers: each sample once, the same order and draws as with none."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.feeds import ranks_of, same_state
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from paceline.errors import PacelineError
from paceline.trainer.data import seeded_stream
from paceline.trainer.data.factory import make_feed
from paceline.trainer.data.feed import Feed, FeedSettings
from paceline.trainer.data.seeded_stream import SeededStream, watch_worker
from paceline.trainer.rng import cpu_state

pytestmark = pytest.mark.ranks  # loader workers are processes too

SIZE = 23


class Plain(IterableDataset):
    """Does not ask who reads it; its order and its samples are drawn."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for i in torch.randperm(self.size).tolist():
            yield i, torch.rand(()).item(), random.random(), float(np.random.rand()), self.epoch


class Sharing(Plain):
    """Gives each worker its part, as torch's documentation asks."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, self.size, step):
            yield i, torch.rand(()).item()


class Late(Plain):
    """Looks after its first sample."""

    def __iter__(self) -> Iterator[int]:
        yield -1
        info = get_worker_info()
        yield from range(info.id, self.size, info.num_workers)


def feed_of(data: Any, **settings: Any) -> tuple[Feed, list[str]]:
    lines: list[str] = []
    return make_feed(data, FeedSettings(**{"seed": 5, "log_line": lines.append, **settings})), lines


def rows(steps: list[Any]) -> list[tuple[Any, ...]]:
    columns = [list(batch) for batches, _, _, _ in steps for batch in batches]
    return [tuple(row) for c in columns for row in zip(*(part.tolist() for part in c), strict=True)]


def read(data: Any, epoch: int = 0, position: int = 0, **settings: Any) -> list[tuple[Any, ...]]:
    feed, _ = feed_of(data, **settings)
    try:
        return rows(list(feed.steps(epoch, position)))
    finally:
        feed.close()


@pytest.mark.parametrize(
    ("batch_size", "settings", "workers"),
    [
        (4, {}, 0),
        (4, {}, 1),
        (5, {}, 2),
        (3, {"accumulate": 2}, 2),
        (4, {"global_batch": 6}, 0),
        (4, {"global_batch": 6}, 2),
    ],
)
def test_neither_workers_nor_micro_batches_change_a_sample_or_a_draw(batch_size, settings, workers):
    whole = read(DataLoader(Plain(), batch_size=23))
    assert sorted(row[0] for row in whole) == list(range(SIZE))
    assert [row[0] for row in whole] != list(range(SIZE))
    assert all(len({row[column] for row in whole}) == SIZE for column in (1, 2, 3))
    loader = DataLoader(Plain(), batch_size=batch_size, num_workers=workers)
    assert read(loader, **settings) == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_are_not_collated_come_once_each(workers):
    class Items(Plain):
        def __iter__(self) -> Iterator[torch.Tensor]:
            yield from (torch.tensor([i]) for i in range(self.size))

    feed, _ = feed_of(DataLoader(Items(), batch_size=None, num_workers=workers))
    assert [int(b) for batches, _, _, _ in feed.steps(0) for b in batches] == list(range(SIZE))


@pytest.mark.parametrize("workers", [0, 2])
def test_any_position_gives_the_rest_draws_included(workers):
    loader = DataLoader(Plain(), batch_size=4, num_workers=workers)
    assert read(loader, 0, 8) == read(loader)[8:]


def test_workers_that_live_on_hear_of_the_epoch_and_draw_again():
    loader = DataLoader(Plain(), batch_size=4, num_workers=2, persistent_workers=True)
    feed, _ = feed_of(loader)
    try:
        for epoch in (0, 1, 0):
            found = rows(list(feed.steps(epoch)))
            assert found == read(DataLoader(Plain(), batch_size=4), epoch)
            assert {row[4] for row in found} == {epoch}
    finally:
        feed.close()


def test_that_each_worker_reads_all_is_said_once():
    feed, lines = feed_of(DataLoader(Plain(), batch_size=4, num_workers=2))
    for epoch in (0, 1):
        list(feed.steps(epoch))
    assert len(lines) == 1
    assert "Plain is not sharded by worker" in lines[0]
    for data, workers in ((Sharing(), 2), (Plain(), 0), (Plain(), 1)):
        feed, lines = feed_of(DataLoader(data, batch_size=4, num_workers=workers))
        list(feed.steps(0))
        assert lines == []


def test_a_dataset_that_shares_itself_out_is_read_as_it_comes():
    found = read(DataLoader(Sharing(), batch_size=4, num_workers=2))
    assert [row[0] for row in found[:8]] == [0, 2, 4, 6, 1, 3, 5, 7]
    assert sorted(row[0] for row in found) == list(range(SIZE))
    assert len({row[1] for row in found}) == SIZE  # workers draw from seeds of their own


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_step_over_workers_parts_is_the_same_on_any_number_of_ranks(world):
    def step_by_step(world: int) -> list[set[int]]:
        parts = []
        for rank in range(world):
            loader = DataLoader(Sharing(96), batch_size=4, num_workers=2)
            ranks = ranks_of(rank, world)
            ranks.all_gather = lambda v: [v, v]
            feed, _ = feed_of(loader, global_batch=12, ranks=ranks)
            parts.append([rows([s]) if sum(s[1]) else [] for s in feed.steps(0)])
        return [{row[0] for part in step for row in part} for step in zip(*parts, strict=True)]

    steps = step_by_step(world)
    assert [len(step) for step in steps] == [12] * 8
    assert steps == step_by_step(1)


class Keeping(Sharing):
    """Looks up its part once, and keeps what it found: the part, or the info itself."""

    part = info = None

    def __init__(self, keeps_info: bool) -> None:
        super().__init__()
        self.keeps_info = keeps_info

    def __iter__(self) -> Iterator[Any]:
        self.info = (self.keeps_info and self.info) or get_worker_info()
        if self.part is None or self.keeps_info:
            self.part = range(self.info.id, self.size, self.info.num_workers)
        yield from ((i, torch.rand(()).item()) for i in self.part)


@pytest.mark.parametrize("keeps_info", [False, True])
def test_one_that_keeps_its_part_over_the_epochs_loses_no_sample(keeps_info):
    loader = DataLoader(Keeping(keeps_info), batch_size=4, num_workers=2, persistent_workers=True)
    feed, lines = feed_of(loader)
    try:
        for epoch in (0, 1, 2):
            found = rows(list(feed.steps(epoch)))
            assert sorted(row[0] for row in found) == list(range(SIZE))
            assert len({row[1] for row in found}) == SIZE
    finally:
        feed.close()
    assert lines == []


@pytest.mark.parametrize("asks", [False, True])
def test_a_worker_init_fn_may_give_each_worker_its_part(asks):
    class Range(IterableDataset):
        first, last = 0, SIZE

        def __iter__(self) -> Iterator[Any]:
            return ((i, torch.rand(()).item()) for i in range(self.first, self.last))

    def init(worker_id: int) -> None:
        info = get_worker_info()
        worker, half = info.id if asks else worker_id, SIZE // 2
        info.dataset.first, info.dataset.last = (0, half) if worker == 0 else (half, SIZE)

    loader = DataLoader(Range(), batch_size=4, num_workers=2, worker_init_fn=init)
    found = read(loader)
    assert sorted(row[0] for row in found) == list(range(SIZE))
    assert len({row[1] for row in found}) == SIZE
    assert sorted(int(i) for batch in loader for i in batch[0]) == list(range(SIZE))  # as torch has it


def test_a_worker_init_fn_that_only_seeds_gives_no_part():
    def init(worker_id: int) -> None:
        np.random.seed(torch.initial_seed() % 2**32)
        random.seed(worker_id)

    loader = DataLoader(Plain(), batch_size=4, num_workers=2, worker_init_fn=init)
    assert read(loader) == read(DataLoader(Plain(), batch_size=4))


@pytest.mark.parametrize("slow", [Plain, Sharing])
def test_the_order_is_not_that_of_the_fastest_worker(slow):
    class Slow(slow):
        def __iter__(self) -> Iterator[Any]:
            time.sleep(0.3 * (1 - torch_worker._worker_info.original.id))
            yield from super().__iter__()

    loaders = [DataLoader(Slow(), batch_size=4, num_workers=2, in_order=o) for o in (True, False)]
    assert read(loaders[0]) == read(loaders[1])
    assert not loaders[1].in_order


class Measured(DataLoader):
    """Has a length, which its dataset has not, and an epoch."""

    epoch = -1

    def __len__(self) -> int:
        return 6

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_a_loader_alone_may_have_a_length_and_an_epoch():
    loader = Measured(Plain(), batch_size=4)
    feed, _ = feed_of(loader)
    assert feed.steps_per_epoch == 6
    list(feed.steps(3))
    assert loader.epoch == 3
    feed, _ = feed_of(loader, global_batch=8)
    assert feed.steps_per_epoch is None
    assert len(list(feed.steps(0))) == 3


def test_one_that_asks_too_late_is_reported(monkeypatch):
    # Here, not in a worker: torch takes 10 s to end workers after an error.
    monkeypatch.setattr(torch_worker, "_worker_info", None)
    watch_worker(SimpleNamespace(id=1, num_workers=2))
    with pytest.raises(PacelineError, match="Late calls get_worker_info"):
        list(SeededStream(Late(), 0, [4]))


def test_a_torch_that_cannot_be_watched_is_an_error_and_no_lost_sample(monkeypatch):
    monkeypatch.setattr(torch_worker, "_worker_info", None)
    monkeypatch.setattr(seeded_stream, "get_worker_info", lambda: None)
    with pytest.raises(PacelineError, match="does not show whether a dataset calls get_worker_info"):
        watch_worker(SimpleNamespace(id=1, num_workers=2))


def test_reading_leaves_the_main_generators_alone():
    before = cpu_state()
    feed, _ = feed_of(DataLoader(Plain(), batch_size=4))
    with closing(feed.steps(0)) as steps:
        list(islice(steps, 2))
    assert same_state(before, cpu_state())


# Map-style data: what the readers above have in common with it


class Numbers(Dataset):
    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, self.epoch


@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch_reaches_the_datasets_of_workers_that_live_on(workers):
    loader = DataLoader(Numbers(), batch_size=4, num_workers=workers, persistent_workers=workers > 0)
    feed, _ = feed_of(loader)
    try:
        for epoch in (0, 3):
            assert {row[1] for row in rows(list(feed.steps(epoch)))} == {epoch}
    finally:
        feed.close()


class Drawn(Sampler):
    """Goes by a generator of its own, whatever kind and name that has."""

    def __init__(self, generator: Any) -> None:
        self.inner_state = generator

    def __iter__(self) -> Iterator[int]:
        own = self.inner_state
        if isinstance(own, random.Random):
            order = list(range(SIZE))
            own.shuffle(order)
        elif isinstance(own, torch.Generator):
            order = torch.randperm(SIZE, generator=own).tolist()
        else:
            order = own.permutation(SIZE).tolist()
        return iter(order)

    def __len__(self) -> int:
        return SIZE


@pytest.mark.parametrize(
    "make",
    [
        random.Random,
        np.random.default_rng,
        np.random.RandomState,
        lambda: np.random.Generator(np.random.MT19937()),
        torch.Generator,
    ],
)
def test_a_samplers_own_generator_gives_each_epoch_an_order_of_seed_and_epoch(make):
    def order(epoch: int, feed: Feed) -> list[int]:
        return [row[0] for row in rows(list(feed.steps(epoch)))]

    feed, _ = feed_of(DataLoader(Numbers(), batch_size=4, sampler=Drawn(make())))
    first, second = order(0, feed), order(1, feed)
    assert sorted(first) == list(range(SIZE))
    assert first != second
    other, _ = feed_of(DataLoader(Numbers(), batch_size=4, sampler=Drawn(make())))
    assert order(1, other) == second  # as a resumed run begins
    another, _ = feed_of(DataLoader(Numbers(), batch_size=4, sampler=Drawn(make())), seed=6)
    assert order(0, another) != first
