"""Whatever can only be iterated: batches as they come, resumed by their own state or by reading forward."""

from __future__ import annotations

import gc
import multiprocessing
import random
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from helpers.feeds import SEED, Quiet, feed_of, read, rows, same_state, take
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from paceline.errors import PacelineError
from paceline.trainer.data.stream_feed import StreamFeed
from paceline.trainer.rng import cpu_state, derive, seed_everything

pytestmark = [
    pytest.mark.ranks,  # loader workers are processes too
    pytest.mark.usefixtures("no_worker_stays"),
]

SIZE = 23


class Numbers(IterableDataset):
    """0, 1, 2 ...; shared out among the workers, as torch's documentation asks."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self.started = 0

    def __iter__(self) -> Iterator[Any]:
        self.started += 1
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, self.size, step):
            yield self.sample(i)

    def sample(self, i: int) -> Any:
        return i


class Sized(Numbers):
    def __len__(self) -> int:
        return self.size


class Drawing(Numbers):
    """Sample i is i and a number from each generator."""

    def sample(self, i: int) -> Any:
        return i, torch.rand(()).item(), random.random(), float(np.random.rand())


class Keeping(Numbers):
    """Knows where it is: starts there once it is set, and counts what it read."""

    def __init__(self, size: int = SIZE) -> None:
        super().__init__(size)
        self.next = self.read = 0

    def __iter__(self) -> Iterator[Any]:
        first, self.next = self.next, 0
        for i in range(first, self.size):
            self.next = i + 1
            self.read += 1
            yield i, torch.rand(()).item()
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class Shuffling(Numbers):
    """Draws its order at the start of each pass."""

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.size).tolist()


def ready(sizes: Iterable[int] = (4, 4, 4, 4, 4, 3)) -> list[torch.Tensor]:
    """Batches in memory: together they count from 0."""
    sizes = list(sizes)
    return list(torch.arange(sum(sizes)).split(sizes))


# Ready batches


class OwnLoader:
    """A loader that has nothing to do with torch's."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(ready())


def test_ready_batches_are_given_as_they_are():
    batches = ready()
    steps = take(feed_of(batches))
    assert all(step[0][0] is batch for step, batch in zip(steps, batches, strict=True))


@pytest.mark.parametrize(
    ("make", "settings", "sizes", "steps_per_epoch"),
    [
        (ready, {}, [[4]] * 5 + [[3]], 6),
        (lambda: ready((4, 4, 4, 4, 3)), {"accumulate": 2}, [[4, 4], [4, 4], [3]], 3),
        (lambda: DataLoader(Numbers(), 4), {"accumulate": 2}, [[4, 4], [4, 4], [4, 3]], None),
        (lambda: DataLoader(Sized(), 4), {"accumulate": 2}, [[4, 4], [4, 4], [4, 3]], 3),
        (lambda: DataLoader(Numbers(), 4), {"accumulate": 2, "limit": 3}, [[4, 4], [4]], 2),
        (lambda: DataLoader(Sized(), 4), {"accumulate": 2, "limit": 3}, [[4, 4], [4]], 2),
        (lambda: DataLoader(Numbers(), 4), {"limit": 100}, [[4]] * 5 + [[3]], 100),
        (lambda: DataLoader(Sized(), 4), {"limit": 100}, [[4]] * 5 + [[3]], 6),
        (OwnLoader, {}, [[4]] * 5 + [[3]], 6),
    ],
)
def test_batches_and_settings_give_the_sizes_of_steps(make, settings, sizes, steps_per_epoch):
    feed = feed_of(data := make(), **settings)
    for epoch in (0, 1):
        steps = take(feed, epoch)
        assert [(found, advance) for _, found, _, advance in steps] == [(step, sum(step)) for step in sizes]
        assert rows(steps) == list(range(sum(map(sum, sizes))))
    assert feed.steps_per_epoch == steps_per_epoch
    assert feed.micro_batches == settings.get("accumulate", 1)
    assert not isinstance(data, DataLoader) or feed.step_size == 4 * feed.micro_batches


def test_a_limit_ends_an_endless_stream():
    feed = feed_of((torch.tensor([i]) for i in count()), limit=5, accumulate=2)
    assert [sizes for _, sizes, _, _ in take(feed)] == [[1, 1], [1, 1], [1]]
    assert feed.steps_per_epoch == 3


def test_a_generator_is_used_up_after_one_epoch():
    feed = feed_of(batch for batch in ready())
    assert feed.steps_per_epoch is None
    assert rows(take(feed)) == list(range(SIZE))
    assert take(feed, 1) == []


def test_batches_may_differ_in_size_and_in_structure():
    batches = [{"x": torch.zeros(2)}, (torch.zeros(5), "name"), torch.zeros(1)]
    assert [advance for *_, advance in take(feed_of(batches))] == [2, 5, 1]
    assert [advance for *_, advance in take(feed_of(tuple(batches)))] == [2, 5, 1]


@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("transfer", [None, lambda batch: batch])
def test_a_position_in_ready_batches_holds_under_any_accumulation(accumulate, transfer):
    lines = Quiet()
    for done in range(7):
        feed = feed_of(ready(), accumulate=accumulate, transfer=transfer, log_line=lines)
        assert rows(take(feed, 0, min(4 * done, SIZE))) == list(range(4 * done, SIZE))
    assert lines == []  # batches in memory are no reading


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}, {"limit": 3}, {"accumulate": 4, "limit": 5}])
@pytest.mark.parametrize("transfer", [None, lambda batch: batch])
def test_ended_is_true_exactly_at_the_last_of_ready_batches(settings, transfer):
    feed = feed_of(ready(), transfer=transfer, **settings)
    for epoch in (0, 1):
        ended = [feed.ended for _ in feed.steps(epoch)]
        assert ended == [False] * (feed.steps_per_epoch - 1) + [True]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_ready_batches_are_shared_out_among_ranks(accumulate):
    def steps(rank: int) -> list[Any]:
        return take(feed_of(ready(), rank=rank, world_size=2, accumulate=accumulate))

    ranks = [steps(rank) for rank in (0, 1)]
    assert sorted(rows(ranks[0]) + rows(ranks[1])) == list(range(SIZE))
    assert [advance for *_, advance in ranks[0]] == [advance for *_, advance in ranks[1]]
    assert sum(advance for *_, advance in ranks[0]) == SIZE  # of all ranks


def test_ready_batches_refuse_a_global_batch():
    with pytest.raises(PacelineError, match="ready made"):
        feed_of(ready(), global_batch=8)


def test_what_cannot_be_iterated_is_refused():
    with pytest.raises(PacelineError, match="cannot be iterated"):
        feed_of(3)


# Generators and other iterables


def test_a_generator_is_read_one_step_ahead_and_no_further():
    """The step ahead tells whether the epoch ends."""
    numbers = count()
    feed = feed_of(torch.tensor([i]) for i in numbers)
    assert rows(take(feed, steps=3)) == [0, 1, 2]
    assert next(numbers) == 4


def test_the_epoch_of_any_object_with_iter_is_set():
    loader = OwnLoader()
    feed = feed_of(loader)
    for epoch in (0, 1):
        take(feed, epoch)
    assert loader.epochs == [0, 1]


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_without_a_state_of_its_own_a_stream_is_read_forward_and_that_is_said(accumulate):
    lines = Quiet()
    feed = feed_of(OwnLoader(), accumulate=accumulate, log_line=lines)
    assert feed.state_dict() == {}
    assert rows(take(feed, 0, 12)) == list(range(12, SIZE))
    assert len(lines) == 1
    assert "skipped 3 batches to resume" in lines[0]
    assert rows(take(feed, 1)) == list(range(SIZE))
    assert len(lines) == 1  # from its start nothing is passed over


# IterableDataset in a DataLoader


@pytest.mark.parametrize("kind", [Numbers, Sized])
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("size", [23, 10])
def test_workers_take_each_sample_once(kind, workers, size):
    # With 10 samples in batches of 4, 2 workers give 4 + 4 + 1 + 1: more batches than len(loader) says.
    found = read(DataLoader(kind(size), batch_size=4, num_workers=workers))
    assert sorted(found) == list(range(size))


@pytest.mark.parametrize("workers", [0, 2])
def test_persistent_workers_serve_several_epochs(workers):
    loader = DataLoader(Drawing(), batch_size=4, num_workers=workers, persistent_workers=workers > 0)
    feed = feed_of(loader)
    try:
        for epoch in (0, 1):
            assert sorted(row[0] for row in rows(take(feed, epoch))) == list(range(SIZE))
        assert len(multiprocessing.active_children()) == workers
    finally:
        feed.close()
    gc.collect()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("kind", [Numbers, Sized])
@pytest.mark.parametrize(("batch_size", "global_batch"), [(4, 6), (8, 5), (3, 10), (23, 23), (10, 15)])
def test_a_global_batch_is_met_without_losing_a_sample(kind, batch_size, global_batch):
    feed = feed_of(DataLoader(kind(), batch_size=batch_size), global_batch=global_batch)
    steps = take(feed)
    assert rows(steps) == list(range(SIZE))
    full, rest = divmod(SIZE, global_batch)
    assert [advance for *_, advance in steps] == [global_batch] * full + [rest] * (rest > 0)
    for _, sizes, _, advance in steps:
        assert max(sizes) <= batch_size
        assert advance < global_batch or max(sizes) - min(sizes) <= 1
    assert feed.step_size == global_batch
    assert feed.steps_per_epoch == (len(steps) if kind is Sized else None)


def test_a_global_batch_and_a_limit():
    feed = feed_of(DataLoader(Numbers(), batch_size=4), global_batch=4, limit=2)
    assert rows(take(feed)) == list(range(8))


@pytest.mark.parametrize("kind", [Numbers, Sized])
def test_drop_last_drops_the_samples_of_an_incomplete_step(kind):
    def loader():
        return DataLoader(kind(), batch_size=4, drop_last=True)

    assert read(loader()) == list(range(20))
    assert read(loader(), accumulate=2) == list(range(16))
    assert read(loader(), global_batch=6) == list(range(18))


@pytest.mark.parametrize(
    ("accumulate", "global_batch", "expected"), [(1, None, 5), (2, None, 2), (1, 6, 3)]
)
def test_drop_last_counts_in_the_steps_of_an_epoch(accumulate, global_batch, expected):
    # Schedules are as long as this number says.
    loader = DataLoader(Sized(), batch_size=4, drop_last=True)
    feed = feed_of(loader, accumulate=accumulate, global_batch=global_batch)
    assert feed.steps_per_epoch == len(take(feed)) == expected


def test_a_dataset_that_makes_the_batches():
    class Batches(Numbers):
        def sample(self, i: int) -> torch.Tensor:
            return torch.full((2,), i)

    loader = DataLoader(Batches(3), batch_size=None)
    assert [sizes for _, sizes, _, _ in take(feed_of(loader, accumulate=2))] == [[2, 2], [2]]
    with pytest.raises(PacelineError, match="the dataset makes the batches"):
        feed_of(loader, global_batch=4)


def test_set_epoch_reaches_an_iterable_dataset():
    class Epochs(Numbers):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def sample(self, i: int) -> int:
            return 100 * self.epoch + i

    for workers in (0, 1):
        feed = feed_of(DataLoader(Epochs(3), batch_size=3, num_workers=workers))
        assert rows(take(feed, 0)) == [0, 1, 2]
        assert rows(take(feed, 2)) == [200, 201, 202]


def test_the_users_worker_init_fn_sees_its_own_dataset():
    class Marked(Numbers):
        mark = -1

        def sample(self, i: int) -> tuple[int, int]:
            return i, self.mark

    def init(worker_id: int) -> None:
        get_worker_info().dataset.mark = 100 + worker_id

    found = read(DataLoader(Marked(), batch_size=4, num_workers=2, worker_init_fn=init))
    assert sorted(found) == [(i, 100 + i % 2) for i in range(SIZE)]


@pytest.mark.parametrize("settings", [{}, {"global_batch": 6}])
def test_the_users_loader_is_left_as_it_was(settings):
    loader = DataLoader(Numbers(), batch_size=4)
    before = dict(vars(loader))
    feed = feed_of(loader, **settings)
    take(feed, steps=2)
    feed.close()
    assert dict(vars(loader)) == before
    assert next(iter(loader)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("kind", [Numbers, Sized])
def test_an_iterable_dataset_is_shared_out_among_ranks(kind, world):
    parts = [
        take(feed_of(DataLoader(kind(), batch_size=4), rank=rank, world_size=world))
        for rank in range(world)
    ]
    assert sorted(row for steps in parts for row in rows(steps)) == list(range(SIZE))
    assert len({tuple(advance for *_, advance in steps) for steps in parts}) == 1
    assert len({tuple(len(sizes) for _, sizes, _, _ in steps) for steps in parts}) == 1


# Resuming


def halves(make: Any, done: int, **settings: Any) -> tuple[list[Any], list[Any], Any, Any]:
    """A run broken off after ``done`` steps: what it gave, what its successor gives, and both feeds."""
    first = feed_of(make(), **settings)
    steps = first.steps(0)
    before = [next(steps) for _ in range(done)]
    state, position = first.state_dict(), sum(advance for *_, advance in before)
    steps.close()
    second = feed_of(make(), **settings)
    second.load_state_dict(state)
    return rows(before), rows(take(second, 0, position)), first, second


@pytest.mark.parametrize("done", [1, 2, 5])
def test_a_dataset_with_a_state_continues_without_reading_forward(done):
    made = []

    def make() -> DataLoader:
        made.append(Keeping())
        return DataLoader(made[-1], batch_size=4)

    whole = read(make())
    before, after, _, second = halves(make, done)
    assert before + after == whole  # draws included
    assert made[-1].read == SIZE - 4 * done
    assert second.settings.log_line == []


def test_a_state_holds_for_accumulation_and_global_batches():
    def make() -> DataLoader:
        return DataLoader(Keeping(), batch_size=4)

    for settings in ({"accumulate": 2}, {"global_batch": 6}):
        before, after, *_ = halves(make, 2, **settings)
        assert [row[0] for row in before + after] == list(range(SIZE))
        assert before + after == read(make(), **settings)


def test_after_a_resumed_epoch_the_next_one_is_whole():
    feed = feed_of(DataLoader(Keeping(), batch_size=4))
    take(feed, steps=2)
    state = feed.state_dict()
    other = feed_of(DataLoader(Keeping(), batch_size=4))
    other.load_state_dict(state)
    assert len(take(other, 0, 8)) == 4
    assert [row[0] for row in rows(take(other, 1))] == list(range(SIZE))


def test_evaluation_reads_the_same_each_time_though_a_pass_was_broken_off():
    feed = feed_of(DataLoader(Keeping(), batch_size=4), fixed_order=True)
    take(feed, steps=2)  # the sanity pass
    for _ in range(2):
        assert [row[0] for row in rows(take(feed))] == list(range(SIZE))


def test_a_limit_counts_what_was_read_before_the_resume():
    before, after, *_ = halves(lambda: DataLoader(Keeping(), batch_size=4), 2, limit=3)
    assert [row[0] for row in before + after] == list(range(12))


def test_a_source_that_keeps_its_own_position_continues():
    class Source:
        """A loader with a state, as torchdata's is."""

        def __init__(self) -> None:
            self.next = 0

        def __iter__(self) -> Iterator[torch.Tensor]:
            first, self.next = self.next, 0
            for i in range(first, 6):
                self.next = i + 1
                yield torch.tensor([i])

        def state_dict(self) -> dict[str, int]:
            return {"next": self.next}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.next = state["next"]

    before, after, _, second = halves(Source, 2)
    assert (before, after) == ([0, 1], [2, 3, 4, 5])
    assert second.settings.log_line == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("done", [1, 3])
def test_a_dataset_without_a_state_is_read_forward_and_draws_the_same(workers, done):
    def make() -> DataLoader:
        return DataLoader(Drawing(), batch_size=4, num_workers=workers)

    whole = read(make())
    before, after, first, second = halves(make, done)
    assert before + after == whole
    assert first.state_dict() == {}
    assert first.settings.log_line == []
    assert len(second.settings.log_line) == 1
    assert f"skipped {done} batches to resume" in second.settings.log_line[0]


def test_reading_forward_changes_no_sample_when_the_accumulation_does():
    whole = read(DataLoader(Drawing(), batch_size=4))
    for accumulate in (1, 2, 4):
        loader = DataLoader(Drawing(), batch_size=4)
        assert read(loader, 0, 12, accumulate=accumulate) == whole[12:]


def test_a_dataset_in_workers_cannot_be_asked_for_its_state():
    # Its copies in the workers moved, the one in this process did not.
    def make() -> DataLoader:
        return DataLoader(Keeping(), batch_size=4, num_workers=1)

    whole = read(make())
    before, after, first, second = halves(make, 2)
    assert first.state_dict() == {}
    assert before + after == whole
    assert len(second.settings.log_line) == 1


def test_after_the_end_nothing_is_left():
    assert read(DataLoader(Numbers(), batch_size=4), 0, SIZE) == []


# Draws


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Drawing, Shuffling])
def test_draws_inside_a_dataset_leave_the_main_generators_alone(kind, workers):
    feed = feed_of(DataLoader(kind(), batch_size=4, num_workers=workers))
    before = cpu_state()
    with closing(feed.steps(0)) as steps:
        for _ in steps:
            assert same_state(before, cpu_state())
            torch.rand(1), random.random(), np.random.rand()
            before = cpu_state()
    assert same_state(before, cpu_state())


def test_draws_inside_a_generator_leave_the_main_generators_alone_and_are_repeatable():
    def batches() -> Iterator[torch.Tensor]:
        order = torch.randperm(6)
        for i in order:
            yield torch.rand(2) + i + random.random() + np.random.rand()

    before = cpu_state()
    whole = read(batches())
    assert same_state(before, cpu_state())
    torch.rand(3), random.random(), np.random.rand()
    assert read(batches()) == whole
    assert read(batches(), 0, 4) == whole[4:]
    assert len(set(whole)) == 12


class Made:
    """Any iterable: its order is drawn as it begins, its batches lie in memory or are drawn one by one."""

    def __init__(self, lazily: bool) -> None:
        self.lazily = lazily

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = [torch.rand(2) + i + random.random() + np.random.rand() for i in range(6)]
        random.shuffle(order)
        return iter(order) if not self.lazily else (batch + np.random.randn() for batch in order)


@pytest.mark.parametrize("lazily", [False, True])
def test_an_iterable_and_training_draw_apart_in_every_epoch(lazily):
    def training() -> list[float]:
        return [torch.rand(()).item(), random.gauss(0, 1), np.random.randn()]  # the last two in pairs

    def epochs(feed: Any) -> tuple[list[Any], list[Any]]:
        draws, found = [training()], []
        for epoch in range(3):
            for step in feed.steps(epoch):
                found += step.batches[0].tolist()
                draws.append(training())
        return found, draws

    seed_everything(3)
    found, draws = epochs(feed_of(Made(lazily)))
    seed_everything(3)
    assert draws == [training() for _ in range(1 + 3 * 6)]
    assert len(set(found)) == 3 * 12
    for epoch in range(3):
        assert read(Made(lazily), epoch) == found[12 * epoch : 12 * epoch + 12]
        assert read(Made(lazily), epoch, 6) == found[12 * epoch + 6 : 12 * epoch + 12]


@pytest.mark.parametrize("number", [0, 1, 4])
def test_a_batch_of_an_iterable_is_drawn_under_the_seed_of_its_place(number):
    def batches() -> Iterator[torch.Tensor]:
        for _ in range(6):
            yield torch.tensor([[torch.rand(()).item(), random.random(), np.random.rand()]])

    seed_everything(derive(SEED, 2, number))
    expected = [torch.rand(()).item(), random.random(), np.random.rand()]
    assert torch.equal(take(feed_of(batches()), 2)[number].batches[0], torch.tensor([expected]))


def test_a_seed_that_an_iterable_sets_is_its_own():
    def batches() -> Iterator[torch.Tensor]:
        for i in range(4):
            np.random.seed(i)
            yield torch.tensor([np.random.rand()], dtype=torch.float32)

    before = cpu_state()
    assert read(batches()) == [
        torch.tensor(np.random.RandomState(i).rand()).float().item() for i in range(4)
    ]
    assert same_state(before, cpu_state())


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_draw_differently_and_repeatably(workers):
    def rows_of(epoch: int, seed: int = 5) -> list[Any]:
        loader = DataLoader(Drawing(), batch_size=4, num_workers=workers)
        return read(loader, epoch, seed=seed)

    first = rows_of(0)
    assert rows_of(0) == first
    others = rows_of(1) + rows_of(0, seed=6)
    for column in (1, 2, 3):
        assert len({row[column] for row in first + others}) == 3 * SIZE


def test_an_order_drawn_by_the_dataset_is_the_epochs_own():
    feed = feed_of(DataLoader(Shuffling(), batch_size=4))
    first, second = rows(take(feed, 0)), rows(take(feed, 1))
    assert sorted(first) == sorted(second) == list(range(SIZE))
    assert first != second
    assert rows(take(feed, 0)) == first


def test_a_fixed_order_is_the_first_epochs():
    class Epochs(Shuffling):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            for i in super().__iter__():
                yield i + 100 * self.epoch

    feed = feed_of(DataLoader(Epochs(), batch_size=4), fixed_order=True, limit=2)
    assert rows(take(feed, 0)) == rows(take(feed, 3))


def test_streams_get_this_feed():
    for data in (ready(), iter(ready()), OwnLoader(), DataLoader(Numbers(), batch_size=4)):
        assert isinstance(feed_of(data), StreamFeed)
    assert feed_of(DataLoader(Numbers())).fingerprint() == {"dataset": "Numbers"}
