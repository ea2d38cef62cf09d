"""Map-style loaders: the loader's own order cut into steps, the same from anywhere, with any workers."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import random
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import accumulate, islice
from typing import Any

import numpy as np
import pytest
import torch
from helpers.feeds import SEED, Quiet, feed_of, read, rows, same_state, take
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)

from paceline.errors import PacelineError
from paceline.trainer.data import seeded_loader as sampling
from paceline.trainer.data.map_feed import MapFeed
from paceline.trainer.rng import cpu_state, order_seed, seed_everything

pytestmark = pytest.mark.usefixtures("no_worker_stays")

SIZE = 23


class Numbers(Dataset):
    """Sample i is i; draws nothing, but is no type that we know of."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


class Drawing(Numbers):
    """Sample i is i and a number from each generator: random augmentation in small."""

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(()).item(), random.random(), float(np.random.rand())


def by_hand(loader: DataLoader, epoch: int = 0) -> list[Any]:
    """The batches a hand-written loop gets under the public order seed."""
    before = cpu_state()
    seed = seed_everything(order_seed(SEED, epoch))
    for owner in (loader, loader.sampler):
        if getattr(owner, "generator", None) is not None:
            owner.generator.manual_seed(seed)
    batches = [batch.tolist() for batch in loader]
    torch.set_rng_state(before[0])
    return batches


class Draws(Sampler):
    """A custom sampler over the dataset that draws from a generator of the user's choice."""

    def __init__(self, kind: str, lazily: bool = True) -> None:
        self.kind, self.lazily = kind, lazily

    def __len__(self) -> int:
        return SIZE

    def _order(self) -> list[int]:
        if self.kind == "torch":
            return torch.randperm(SIZE).tolist()
        if self.kind == "numpy":
            return [int(i) for i in np.random.permutation(SIZE)]
        return random.sample(range(SIZE), SIZE)

    def __iter__(self) -> Iterator[int]:
        return self._later() if self.lazily else iter(self._order())

    def _later(self) -> Iterator[int]:
        yield from self._order()


class Units(Sampler):
    """A custom batch sampler: batches of 3, 1, 4, 2, then again, of a new order each epoch."""

    def __init__(self, size: int = SIZE, lazily: bool = True, shuffle: bool = True) -> None:
        self.size, self.lazily, self.shuffle = size, lazily, shuffle

    def _units(self) -> list[list[int]]:
        order = torch.randperm(self.size).tolist() if self.shuffle else list(range(self.size))
        units, sizes = [], [3, 1, 4, 2] * self.size
        for size in sizes:
            units.append(order[:size])
            order = order[size:]
            if not order:
                return units
        raise AssertionError

    def __len__(self) -> int:
        return len(Units(self.size, shuffle=False)._units())

    def __iter__(self) -> Iterator[list[int]]:
        return self._later() if self.lazily else iter(self._units())

    def _later(self) -> Iterator[list[int]]:
        yield from self._units()


SAMPLERS = {
    "sequential": dict,
    "shuffle": lambda: {"shuffle": True},
    "weighted": lambda: {"sampler": WeightedRandomSampler(torch.arange(1.0, SIZE + 1), 40)},
    "subset": lambda: {"sampler": SubsetRandomSampler(range(3, 17))},
    "replacement": lambda: {"sampler": RandomSampler(Numbers(), replacement=True, num_samples=31)},
    "torch": lambda: {"sampler": Draws("torch")},
    "random": lambda: {"sampler": Draws("random")},
    "numpy": lambda: {"sampler": Draws("numpy")},
    "torch_at_once": lambda: {"sampler": Draws("torch", lazily=False)},
    "random_at_once": lambda: {"sampler": Draws("random", lazily=False)},
    "numpy_at_once": lambda: {"sampler": Draws("numpy", lazily=False)},
    "plain_list": lambda: {"sampler": [5, 3, 3, 0]},
    "generator": lambda: {"shuffle": True, "generator": torch.Generator()},
    "generator, drop_last": lambda: {"shuffle": True, "drop_last": True, "generator": torch.Generator()},
    "sampler's generator": lambda: {
        "sampler": WeightedRandomSampler(torch.ones(SIZE), SIZE, generator=torch.Generator())
    },
    "units": lambda: {"batch_sampler": Units()},
    "units_at_once": lambda: {"batch_sampler": Units(lazily=False)},
}


def loader_of(kind: str, dataset: Any = None, workers: int = 0) -> DataLoader:
    """In batches of 4, or as the batch sampler has them."""
    options = SAMPLERS[kind]()
    size = {} if "batch_sampler" in options else {"batch_size": 4}
    return DataLoader(dataset or Numbers(), num_workers=workers, **size, **options)


# The order is the loader's own


@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_order_is_what_the_loader_itself_gives(kind):
    feed, hand = feed_of(loader_of(kind)), loader_of(kind)
    first, second = by_hand(hand, 0), by_hand(hand, 1)
    for epoch, expected in enumerate((first, second)):
        assert [batches[0].tolist() for batches, _, _, _ in take(feed, epoch)] == expected
        assert feed.steps_per_epoch == len(expected)
    assert (first == second) == (kind in ("sequential", "plain_list"))


@pytest.mark.parametrize("lazily", [True, False])
def test_the_order_of_a_loader_that_does_not_collate(lazily):
    def loader():
        return DataLoader(
            TensorDataset(torch.arange(SIZE)), batch_size=None, sampler=Draws("torch", lazily)
        )

    before = cpu_state()
    seed_everything(order_seed(SEED, 0))
    expected = [batch[0].item() for batch in loader()]
    torch.set_rng_state(before[0])
    assert [b[0][0].item() for b, _, _, _ in take(feed_of(loader()))] == expected


@pytest.mark.parametrize("kind", ["shuffle", "weighted", "numpy_at_once"])
def test_workers_do_not_change_the_order(kind):
    assert read(loader_of(kind, workers=2)) == [i for batch in by_hand(loader_of(kind)) for i in batch]


def test_epochs_and_seeds_have_orders_of_their_own():
    loader = DataLoader(Numbers(), batch_size=4, shuffle=True)
    orders = [read(loader, 0), read(loader, 1), read(loader, 0, seed=SEED + 1)]
    assert all(sorted(order) == list(range(SIZE)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert read(loader, 0) == orders[0]


def test_a_fixed_order_is_the_first_epochs():
    loader = DataLoader(Numbers(), batch_size=4, shuffle=True)
    feed = feed_of(loader, fixed_order=True, limit=2)
    assert rows(take(feed, 0)) == rows(take(feed, 3)) == read(loader, 0)[:8]


def test_indices_may_be_anything_a_dataset_takes():
    class Named(Dataset):
        def __getitem__(self, name: str) -> int:
            return len(name)

    loader = DataLoader(Named(), batch_size=2, sampler=["a", "bbb", "cc"])
    assert read(loader) == [1, 3, 2]


# Steps


def test_drop_last_drops_the_samples_of_an_incomplete_step():
    loader = DataLoader(Numbers(), batch_size=4, drop_last=True)
    assert read(loader) == list(range(20))
    assert read(loader, accumulate=2) == list(range(16))
    assert read(loader, global_batch=5) == list(range(20))
    assert feed_of(loader, accumulate=2).steps_per_epoch == 2


PLAIN = BatchSampler(SequentialSampler(Numbers()), 4, drop_last=True)


@pytest.mark.parametrize(
    ("options", "settings", "sizes", "counts"),
    [
        ({"batch_size": 4}, {"accumulate": 2}, [[4, 4], [4, 4], [4, 3]], (3, 8, 2)),
        # a tail too short for all micro-batches takes fewer
        ({"batch_size": 11}, {"accumulate": 2}, [[11, 11], [1]], (2, 22, 2)),
        # micro-batches become smaller and even where a global batch does not divide
        ({"batch_size": 4}, {"global_batch": 10}, [[4, 3, 3], [4, 3, 3], [3]], (3, 10, 3)),
        ({"batch_size": 8}, {"global_batch": 5}, [[5], [5], [5], [5], [3]], (5, 5, 1)),
        # a plain batch sampler is read like the arguments, and can be cut
        ({"batch_sampler": PLAIN}, {"global_batch": 6}, [[3, 3]] * 3, (3, 6, 2)),
        # the batches of another one are not cut
        (
            {"batch_sampler": Units(shuffle=False)},
            {"accumulate": 2},
            [[3, 1], [4, 2], [3, 1], [4, 2], [3]],
            (5, None, 2),
        ),
    ],
)
def test_batches_and_settings_give_the_sizes_of_steps(options, settings, sizes, counts):
    feed = feed_of(DataLoader(Numbers(), **options), **settings)
    steps = take(feed)
    assert [(found, advance) for _, found, _, advance in steps] == [(step, sum(step)) for step in sizes]
    assert rows(steps) == list(range(sum(map(sum, sizes))))
    assert (feed.steps_per_epoch, feed.step_size, feed.micro_batches) == counts


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}, {"global_batch": 11}])
def test_ranks_share_each_step_and_together_take_each_sample_once(world, settings):
    def ranks(position: int = 0) -> list[Any]:
        loader = DataLoader(Drawing(), batch_size=3, shuffle=True)
        return [
            take(feed_of(loader, rank=r, world_size=world, **settings), 0, position) for r in range(world)
        ]

    def joined(parts: list[Any]) -> list[Any]:
        found = []
        for steps in zip(*parts, strict=True):
            assert len({step[-1] for step in steps}) == 1
            for batches in zip(*(zip(b, s, strict=True) for b, s, *_ in steps), strict=True):
                found += rows([(*zip(*batches, strict=True), 0, 0)])
        return found

    alone = read(DataLoader(Drawing(), batch_size=3, shuffle=True))
    assert joined(ranks()) == alone
    assert joined(ranks(position=7)) == alone[7:]


def test_a_rank_with_no_sample_reads_the_steps_first_one_and_counts_none():
    # It must take part in the step's collectives, so it needs something to run.
    steps = take(feed_of(DataLoader(Drawing(9), batch_size=4), rank=1, world_size=2))
    batches, sizes, _, advance = steps[-1]
    assert (sizes, advance) == ([0], 1)
    assert batches[0][0].tolist() == [8]


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"batch_size": 4}, {}),
        ({"batch_size": 4}, {"accumulate": 4}),
        ({"batch_size": 4, "drop_last": True}, {"accumulate": 2}),
        ({"batch_size": 4}, {"limit": 3}),
        ({"batch_sampler": Units()}, {"accumulate": 2}),
        ({"batch_size": None}, {}),
    ],
)
def test_ended_is_true_exactly_at_the_last_step(options, settings):
    feed = feed_of(DataLoader(Numbers(), **options), **settings)
    for epoch in (0, 1):
        ended = [feed.ended for _ in feed.steps(epoch)]
        assert ended == [False] * (feed.steps_per_epoch - 1) + [True]


def test_at_the_end_of_an_epoch_nothing_is_left():
    feed = feed_of(DataLoader(Numbers(), batch_size=4))
    assert take(feed, 0, SIZE) == []
    assert feed.ended


def test_the_samples_of_a_micro_batch_are_known():
    for options in ({"batch_size": 4, "shuffle": True}, {"batch_sampler": Units()}):
        feed = feed_of(DataLoader(Numbers(), **options), accumulate=2)
        for batches, _, _, _ in feed.steps(0):
            for number, batch in enumerate(batches):
                assert list(feed.samples_of(number)) == batch.tolist()


# Batches that are units


def test_units_resume_from_a_position_in_samples():
    def loader():
        return DataLoader(Drawing(), batch_sampler=Units())

    whole = take(feed_of(loader(), accumulate=2))
    ends = list(accumulate(advance for *_, advance in whole))
    for done, position in enumerate(ends, 1):
        assert rows(take(feed_of(loader(), accumulate=2), 0, position)) == rows(whole[done:])
    assert ends[-1] == SIZE


def test_units_on_two_ranks_are_dealt_in_rotation():
    def steps(rank: int) -> list[Any]:
        loader = DataLoader(Numbers(14), batch_sampler=Units(14, shuffle=False))
        return take(feed_of(loader, rank=rank, world_size=2))

    first, second = steps(0), steps(1)
    assert [advance for *_, advance in first] == [advance for *_, advance in second] == [4, 6, 4]
    assert rows(first) == [0, 1, 2, 4, 5, 6, 7, 10, 11, 12]
    assert rows(second) == [3, 8, 9, 13]


def test_a_rank_without_a_unit_counts_no_sample():
    def steps(rank: int) -> list[Any]:
        loader = DataLoader(Numbers(10), batch_sampler=Units(10, shuffle=False), num_workers=0)
        return take(feed_of(loader, rank=rank, world_size=3))

    last = [steps(rank)[-1] for rank in range(3)]
    assert [sizes for _, sizes, _, _ in last] == [[2], [0], [0]]
    assert [advance for *_, advance in last] == [2, 2, 2]
    assert all(len(batches) == 1 and len(batches[0]) for batches, *_ in last)


def test_units_refuse_a_global_batch():
    with pytest.raises(PacelineError, match="batch sampler makes the batches"):
        feed_of(DataLoader(Numbers(), batch_sampler=Units()), global_batch=8)
    with pytest.raises(PacelineError, match="global_batch_size"):
        feed_of(DataLoader(Numbers(), batch_size=None), global_batch=8)


def test_a_subclass_of_the_batch_sampler_makes_units_too():
    class Reversed(BatchSampler):
        def __iter__(self) -> Iterator[list[int]]:
            return iter([batch[::-1] for batch in super().__iter__()])

    loader = DataLoader(Numbers(6), batch_sampler=Reversed(SequentialSampler(Numbers(6)), 4, False))
    assert read(loader) == [3, 2, 1, 0, 5, 4]


def test_a_loader_that_does_not_collate_gives_its_items_and_resumes_anywhere():
    batches = TensorDataset(torch.arange(24).view(6, 4))

    def loader():
        return DataLoader(batches, batch_size=None, shuffle=True)

    whole = take(feed_of(loader()))
    assert [sizes for _, sizes, _, _ in whole] == [[4]] * 6
    assert sorted(int(b[0][0][0]) for b, *_ in whole) == list(range(0, 24, 4))
    position = sum(advance for *_, advance in whole[:2])
    rest = take(feed_of(loader()), 0, position)
    assert [b[0][0].tolist() for b, *_ in rest] == [b[0][0].tolist() for b, *_ in whole[2:]]


def test_lists_of_indices_from_a_sampler_are_read_at_once():
    order = BatchSampler(SequentialSampler(Numbers(10)), 4, drop_last=False)
    loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=None, sampler=order)
    assert [b[0][0].tolist() for b, *_ in take(feed_of(loader))] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_draws_of_a_loader_that_does_not_collate_depend_on_the_position(workers):
    def items(position: int = 0, workers: int = 0) -> list[Any]:
        loader = DataLoader(Drawing(), batch_size=None, shuffle=True, num_workers=workers)
        return [b[0] for b, *_ in take(feed_of(loader), 0, position)]

    whole = items()
    assert len({item[1] for item in whole}) == SIZE
    assert items(0, workers) == whole
    assert items(9, workers) == whole[9:]


# Distributed samplers and set_epoch


@pytest.mark.parametrize("explicit", [False, True])
def test_a_distributed_sampler_gives_its_order_over_all_ranks_once(explicit):
    def loader() -> tuple[DataLoader, DistributedSampler]:
        data = Numbers(10)
        sampler = DistributedSampler(data, num_replicas=4, rank=3, shuffle=True, seed=9)
        if explicit:
            return DataLoader(data, batch_sampler=BatchSampler(sampler, 3, False)), sampler
        return DataLoader(data, batch_size=3, sampler=sampler), sampler

    lines, (data, sampler) = Quiet(), loader()
    feed = feed_of(data, log_line=lines)
    alone = DistributedSampler(Numbers(10), num_replicas=1, rank=0, shuffle=True, seed=9)
    for epoch in (0, 1):
        alone.set_epoch(epoch)
        assert rows(take(feed, epoch)) == list(alone)
    assert feed.steps_per_epoch == 4
    assert len(lines) == 1
    assert "DistributedSampler" in lines[0]
    assert (sampler.num_replicas, sampler.rank, sampler.num_samples) == (4, 3, 3)


def test_set_epoch_is_called_wherever_it_is():
    class Noting:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.epochs: list[int] = []
            super().__init__(*args, **kwargs)

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    class Data(Noting, Numbers):
        pass

    class Order(Noting, SequentialSampler):
        pass

    class Batches(Noting, BatchSampler):
        pass

    class Loader(Noting, DataLoader):
        pass

    def called(owner: Any) -> list[int]:
        return list(dict.fromkeys(owner.epochs))

    data = Data()
    loader = Loader(data, batch_size=4, sampler=Order(data))
    feed = feed_of(loader)
    for epoch in (0, 1):
        take(feed, epoch, steps=1)
    assert called(data) == called(loader) == called(loader.sampler) == [0, 1]

    order = Order(data)
    batches = Batches(order, 4, False)
    for sampler in (batches, BatchSampler(order, 4, False)):
        order.epochs.clear()
        take(feed_of(DataLoader(data, batch_sampler=sampler)), 2, steps=1)
        assert called(order) == [2]  # the one inside the batch sampler decides the order
    assert called(batches) == [2]


# Random augmentation


@pytest.fixture(scope="module")
def augmented() -> list[Any]:
    """The samples and draws that every way of reading must give."""
    return read(DataLoader(Drawing(), batch_size=4, shuffle=True))


def test_draws_differ_between_samples_and_epochs(augmented):
    other = read(DataLoader(Drawing(), batch_size=4, shuffle=True), 1)
    assert sorted(row[0] for row in augmented) == list(range(SIZE))
    for column in (1, 2, 3):
        assert len({row[column] for row in augmented + other}) == 2 * SIZE


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize(
    ("batch_size", "settings"),
    [(4, {}), (1, {}), (7, {}), (3, {"accumulate": 2}), (5, {"global_batch": 8})],
)
def test_workers_and_micro_batches_change_no_sample_and_no_draw(augmented, workers, batch_size, settings):
    loader = DataLoader(Drawing(), batch_size=batch_size, shuffle=True, num_workers=workers)
    assert read(loader, **settings) == augmented


@pytest.mark.parametrize("workers", [0, 2])
def test_any_position_gives_the_rest_draws_included(augmented, workers):
    for position in (1, 7, 22) if workers else range(SIZE + 1):
        loader = DataLoader(Drawing(), batch_size=4, shuffle=True, num_workers=workers)
        assert read(loader, 0, position) == augmented[position:]


@pytest.mark.parametrize("shuffle_size", [SIZE, 3])
def test_workers_end_while_the_last_step_computes(shuffle_size):
    feed = feed_of(DataLoader(Drawing(shuffle_size), 4, shuffle=True, num_workers=2))
    for _ in feed.steps(0):
        if feed.ended:
            deadline = time.monotonic() + 60
            while multiprocessing.active_children():
                assert time.monotonic() < deadline
                time.sleep(0.01)


def test_persistent_workers_serve_several_epochs_alike():
    def loader(workers: int) -> DataLoader:
        return DataLoader(Drawing(), 4, shuffle=True, num_workers=workers, persistent_workers=workers > 0)

    feed, alone = feed_of(loader(2)), feed_of(loader(0))
    try:
        take(feed, 0)
        kept = {p.pid for p in multiprocessing.active_children()}
        assert rows(take(feed, 1)) == rows(take(alone, 1))
        assert {p.pid for p in multiprocessing.active_children()} == kept
        assert len(kept) == 2
        take(feed, 2, steps=1)  # an epoch left early must leak nothing into the next one
        assert rows(take(feed, 3, 5)) == rows(take(alone, 3, 5))
    finally:
        feed.close()
    gc.collect()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["shuffle", "torch", "random", "numpy", "units"])
def test_feeding_leaves_the_main_generators_alone(kind, workers):
    feed = feed_of(loader_of(kind, Drawing(), workers))
    before, read_so_far = cpu_state(), 0
    with closing(feed.steps(0)) as steps:
        for *_, advance in steps:
            read_so_far += advance
            assert same_state(before, cpu_state())
            # What the module draws between steps must continue from where it was.
            torch.rand(1), random.random(), np.random.rand()
            before = cpu_state()
    assert read_so_far == SIZE
    assert same_state(before, cpu_state())


def test_what_the_main_process_draws_does_not_reach_the_samples(augmented):
    feed = feed_of(DataLoader(Drawing(), batch_size=4, shuffle=True))
    found = []
    with closing(feed.steps(0)) as steps:
        for step in steps:
            found += rows([step])
            seed_everything(random.randrange(1000))
    assert found == augmented


def test_subsets_and_concatenations_of_a_drawing_dataset_draw_alike():
    parts = Subset(Drawing(), range(10)), Subset(Drawing(), range(10, SIZE))
    loader = DataLoader(ConcatDataset(parts), batch_size=4)
    assert read(loader) == read(DataLoader(Drawing(), batch_size=7, num_workers=1))


@pytest.mark.parametrize("dataset", [TensorDataset(torch.arange(SIZE)), Drawing()])
@pytest.mark.parametrize("draw", [torch.rand, lambda n: torch.tensor(np.random.rand(n))])
def test_a_collate_function_that_draws_is_the_same_with_workers_and_resumed(dataset, draw):
    def collate(samples: list[Any]) -> Any:
        columns = default_collate(samples)
        return [columns[0], draw(len(samples))]

    def loader(workers: int) -> DataLoader:
        return DataLoader(dataset, 4, shuffle=True, num_workers=workers, collate_fn=collate)

    before = cpu_state()
    whole = read(loader(0))
    assert same_state(before, cpu_state())
    assert len({row[1] for row in whole}) == SIZE
    assert read(loader(2)) == whole
    assert read(loader(0), 0, 8) == whole[8:]
    assert read(loader(2), 0, 20) == whole[20:]
    assert read(loader(0), 1) != whole


# What the user wrote keeps working


def test_a_custom_collate_function_gets_the_samples():
    loader = DataLoader(Numbers(), batch_size=4, collate_fn=lambda samples: {"x": torch.tensor(samples)})
    assert [b[0]["x"].tolist() for b, *_ in take(feed_of(loader))] == by_hand(
        DataLoader(Numbers(), batch_size=4)
    )


def test_a_subclass_may_read_ahead():
    class Ahead(DataLoader):
        def __iter__(self) -> Iterator[Any]:
            iterator = super().__iter__()
            waiting = list(islice(iterator, 2))
            while waiting:
                yield waiting.pop(0)
                waiting += islice(iterator, 1)

    feed = feed_of(Ahead(Numbers(), batch_size=4))
    steps = take(feed)
    assert rows(steps) == list(range(SIZE))
    assert [advance for *_, advance in steps] == [4, 4, 4, 4, 4, 3]
    assert rows(take(feed, 0, 8)) == list(range(8, SIZE))


def test_a_subclass_sees_its_own_dataset():
    class Scaled(Numbers):
        scale = 10

    class Scaling(DataLoader):
        def __iter__(self) -> Iterator[Any]:
            for batch in super().__iter__():
                yield batch * self.dataset.scale

    assert read(Scaling(Scaled(), batch_size=4)) == [10 * i for i in range(SIZE)]


def test_a_subclass_sees_how_many_batches_there_are():
    class Counting(DataLoader):
        def __iter__(self) -> Iterator[Any]:
            iterator = super().__iter__()
            for number in range(len(self)):
                yield next(iterator) + 100 * (len(self) - number)

    assert read(Counting(Numbers(8), batch_size=4)) == [200, 201, 202, 203, 104, 105, 106, 107]


@pytest.mark.parametrize("dataset", [TensorDataset(torch.arange(SIZE)), Drawing()])
@pytest.mark.parametrize("workers", [0, 2])
def test_draws_in_a_subclasss_iter_leave_the_main_generators_alone(dataset, workers):
    class Noisy(DataLoader):
        def __iter__(self) -> Iterator[Any]:
            for batch in super().__iter__():
                yield [batch[0], torch.rand(len(batch[0]))]

    feed = feed_of(Noisy(dataset, batch_size=4, num_workers=workers))
    before = cpu_state()
    whole = rows(take(feed))
    assert same_state(before, cpu_state())
    assert len({row[1] for row in whole}) == SIZE


def test_a_subclass_that_ends_early_is_named():
    class Short(DataLoader):
        def __iter__(self) -> Iterator[Any]:
            yield from islice(super().__iter__(), 2)

    with pytest.raises(PacelineError, match="Short ended before its sampler"):
        take(feed_of(Short(Numbers(), batch_size=4)))


def test_the_users_worker_init_fn_runs_and_sees_its_own_dataset():
    class Marked(Drawing):
        mark = -1

        def __getitem__(self, index: int) -> tuple[int, int]:
            return index, self.mark

    def init(worker_id: int) -> None:
        info = get_worker_info()
        assert info.id == worker_id
        info.dataset.mark = 100 + worker_id

    data = Marked()
    found = read(DataLoader(data, batch_size=4, num_workers=2, worker_init_fn=init))
    assert [index for index, _ in found] == list(range(SIZE))
    assert {mark for _, mark in found} == {100, 101}
    assert data.mark == -1


def test_a_dataset_sees_itself_in_a_worker():
    class Asking(Numbers):
        def __getitem__(self, index: int) -> tuple[int, bool]:
            info = get_worker_info()
            return index, info is not None and info.dataset is self

    assert read(DataLoader(Asking(), batch_size=8, num_workers=1)) == [(i, True) for i in range(SIZE)]


def test_a_dataset_that_cannot_draw_is_never_seeded(monkeypatch):
    def refuse(seed: int) -> None:
        raise AssertionError("seeded")

    monkeypatch.setattr(sampling, "seed_for_sample", refuse)
    numbers = TensorDataset(torch.arange(SIZE))
    for data in (numbers, list(range(SIZE)), Subset(numbers, range(7)), ConcatDataset([numbers, numbers])):
        assert len(read(DataLoader(data, batch_size=4, shuffle=True))) == len(data)
    with pytest.raises(AssertionError, match="seeded"):
        read(DataLoader(Drawing(), batch_size=4))


def test_a_dataset_that_cannot_draw_is_not_wrapped():
    seen = []

    class Looking(DataLoader):
        def __iter__(self) -> Iterator[Any]:
            seen.append(self.dataset)
            return super().__iter__()

    data = TensorDataset(torch.arange(SIZE))
    assert read(Looking(data, batch_size=4)) == list(range(SIZE))
    assert seen == [data]


class ByBatch(Numbers):
    """Reads a micro-batch at once; says which indices it was asked for, and in what type."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        assert type(indices) is list
        return [(i, len(indices)) for i in indices]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_with_getitems_of_its_own_is_read_by_the_micro_batch(workers):
    def loader(workers: int) -> DataLoader:
        return DataLoader(ByBatch(), batch_size=4, shuffle=True, num_workers=workers)

    whole = read(loader(0))
    assert [row[0] for row in whole] == read(DataLoader(Numbers(), batch_size=4, shuffle=True))
    assert [row[1] for row in whole] == [4] * 20 + [3] * 3
    assert read(loader(workers)) == whole
    assert read(loader(workers), 0, 8) == whole[8:]


class DrawingByBatch(Dataset):
    """Draws for all of a micro-batch at once."""

    def __len__(self) -> int:
        return SIZE

    def __getitems__(self, indices: list[int]) -> list[Any]:
        noise = np.random.rand(len(indices)).tolist()
        return [(i, torch.rand(()).item(), random.random(), n) for i, n in zip(indices, noise, strict=True)]


class Rarely(Numbers):
    """A few samples draw, each from another generator; none of them is in the first micro-batch."""

    def __getitem__(self, index: int) -> Any:
        drawn = 0.0
        if index == 9:
            drawn = random.random()
        elif index == 14:
            drawn = float(np.random.rand())
        elif index >= 18:
            drawn = torch.rand(()).item() + random.random()
        return index, drawn


class Seeding(Numbers):
    """Asks torch for its seed, or draws from a fork of it: nothing moves."""

    def __getitem__(self, index: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            drawn = torch.rand(()).item()
        return index, float(torch.initial_seed() % 2**20), drawn


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 4, 23])
@pytest.mark.parametrize("kind", [DrawingByBatch, Rarely, Seeding])
def test_draws_go_by_position_whatever_the_micro_batch(kind, batch_size, workers):
    before = cpu_state()
    whole = read(DataLoader(kind(), batch_size=5))
    assert same_state(before, cpu_state())
    if kind is not Rarely:
        assert all(len({row[column] for row in whole}) == SIZE for column in range(len(whole[0])))
    loader = DataLoader(kind(), batch_size=batch_size, num_workers=workers)
    assert read(loader) == whole
    assert read(loader, 0, 12) == whole[12:]  # of Rarely, the one that drew first was read before


def test_a_sample_that_draws_rarely_draws_what_it_would_among_others():
    whole = read(DataLoader(Rarely(), batch_size=5))
    assert [index for index, drawn in whole if drawn] == [9, 14, *range(18, SIZE)]
    drawn = {index: draws for index, *draws in read(DataLoader(Drawing(), batch_size=5))}
    assert dict(whole)[9] == drawn[9][1]
    assert dict(whole)[14] == drawn[14][2]
    assert dict(whole)[20] == drawn[20][0] + drawn[20][1]


def test_collating_draws_the_same_whatever_samples_drew_before():
    def noisy(samples: list[Any]) -> Any:
        return default_collate([(*s, random.random(), torch.rand(()).item()) for s in samples])

    def loader() -> DataLoader:
        return DataLoader(Rarely(), batch_size=4, collate_fn=noisy)

    whole = read(loader())
    assert len({row[2] for row in whole}) == SIZE
    for position in range(4, SIZE, 4):
        assert read(loader(), 0, position) == whole[position:]


@pytest.fixture
def seeds(monkeypatch):
    """Which generators were seeded, time by time; () for all."""
    found, seed, seeder = [], sampling.seed_for_sample, sampling.seeder

    def noted(which: Any) -> Any:
        seed_one = seeder(which)
        return lambda number: (found.append((which,)), seed_one(number))

    monkeypatch.setattr(sampling, "seed_for_sample", lambda *a: (found.append(a[1:]), seed(*a)))
    monkeypatch.setattr(sampling, "seeder", noted)
    return found


def test_a_dataset_that_draws_nothing_is_read_once_and_torch_alone_is_seeded(seeds):
    asked = []

    class Counting(Numbers):
        def __getitem__(self, index: int) -> int:
            asked.append(index)
            return index

    read(DataLoader(Counting(), batch_size=4))
    assert asked == list(range(SIZE))
    assert seeds.count(()) == 6
    assert seeds.count(((True, False, False),)) == SIZE
    assert len(seeds) == 6 + SIZE


def test_another_generator_is_seeded_when_it_was_drawn_from(seeds):
    class Nines(Numbers):
        def __getitem__(self, index: int) -> Any:
            return index, float(np.random.rand()) if index == 9 else 0.0

    read(DataLoader(Nines(), batch_size=4))
    # Two batches before it, its own once in vain and once more, and the three after it.
    assert seeds.count(((True, False, False),)) == 3 * 4
    assert seeds.count(((True, False, True),)) == 4 + 4 + 4 + 3


@pytest.mark.parametrize("batch_size", [1, 4, 23])
def test_an_error_that_only_a_wrong_draw_brings_is_none(batch_size):
    drawn = [row[2] for row in read(DataLoader(Drawing(), batch_size=5))]
    least, most = min(drawn), max(drawn)

    class Picky(Drawing):
        def __getitem__(self, index: int) -> Any:
            if not least <= random.random() <= most:
                raise ValueError("an unlucky draw")
            return index

    assert read(DataLoader(Picky(), batch_size=batch_size)) == list(range(SIZE))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_getitems_has_collated_already_is_kept(workers):
    class Collated(Numbers):
        def __getitems__(self, indices: list[int]) -> Any:
            return {"x": torch.tensor(indices), "noise": torch.rand(len(indices))}

    loader = DataLoader(Collated(), batch_size=4, collate_fn=lambda given: given, num_workers=workers)
    found = [batch for step in take(feed_of(loader)) for batch in step[0]]
    assert [batch["x"].tolist() for batch in found][:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len({value for batch in found for value in batch["noise"].tolist()}) == SIZE


def test_a_loader_that_does_not_collate_asks_for_items():
    class Both(Numbers):
        def __getitem__(self, index: Any) -> Any:
            return torch.tensor(index)

        def __getitems__(self, indices: Any) -> Any:
            raise AssertionError("asked for several")

    loader = DataLoader(
        Both(), batch_size=None, sampler=BatchSampler(SequentialSampler(range(SIZE)), 4, False)
    )
    found = [batch.tolist() for step in take(feed_of(loader)) for batch in step[0]]
    assert found[:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_what_one_worker_has_seen_all_know_in_every_epoch(tmp_path):
    class Counted(Drawing):
        def __getitem__(self, index: int) -> Any:
            (tmp_path / f"{index}-{random.getrandbits(64):x}-{os.getpid()}").touch()
            return super().__getitem__(index)

    feed = feed_of(DataLoader(Counted(), batch_size=4, num_workers=2))
    for epoch in range(3):
        take(feed, epoch)
    # At most a batch of each worker is read in vain, in the first epoch only.
    assert 3 * SIZE < len(list(tmp_path.iterdir())) <= 3 * SIZE + 2 * 4


@pytest.mark.parametrize("persistent", [False, True])
def test_the_users_loader_is_left_as_it_was(persistent):
    options = {"num_workers": 1, "persistent_workers": True} if persistent else {}
    loader = DataLoader(Drawing(), batch_size=4, shuffle=True, **options)
    owners = loader, loader.sampler, loader.batch_sampler, loader.dataset
    inside = [dict(vars(owner)) for owner in owners]
    feed = feed_of(loader, accumulate=2)
    assert len(rows(take(feed))) == SIZE
    feed.close()
    assert inside == [dict(vars(owner)) for owner in owners]
    assert len(loader) == 6


def test_a_loader_with_workers_already_at_work_is_read_again():
    loader = DataLoader(Drawing(), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)
    next(iter(loader))
    users = loader._iterator
    feed = feed_of(loader)
    assert read(DataLoader(Drawing(), batch_size=4, shuffle=True)) == rows(take(feed))
    assert loader._iterator is users
    feed.close()
    loader._iterator = users = None


def test_two_feeds_may_read_one_loader_at_once():
    loader = DataLoader(Drawing(), batch_size=4, shuffle=True)
    expected = read(loader)
    first, second = feed_of(loader).steps(0), feed_of(loader).steps(0, 4)
    found: tuple[list[Any], list[Any]] = [], []
    for one, other in zip(first, second, strict=False):
        found[0].extend(rows([one]))
        found[1].extend(rows([other]))
    assert found[0] == expected[:20]
    assert found[1] == expected[4:]


def test_what_goes_to_workers_survives_the_way():
    # Workers that are spawned get everything by pickle; the queue carries the place of a micro-batch.
    placed = sampling.SeededIndices([3, 1])
    placed.origin, placed.data_epoch = sampling.SamplePosition(1, 2, 3), 2
    for copied in (pickle.loads(pickle.dumps(placed)), copy.deepcopy(placed)):
        assert copied == [3, 1]
        assert (copied.origin, copied.data_epoch) == (placed.origin, 2)
    wrapped = pickle.loads(pickle.dumps(sampling.SeededDataset(TensorDataset(torch.arange(4)))))
    assert len(wrapped) == 4
    assert [int(sample[0]) for sample in wrapped.__getitems__(placed)] == [3, 1]


def test_workers_run_in_processes_of_their_own():
    class Where(Numbers):
        def __getitem__(self, index: int) -> tuple[int, int]:
            return index, os.getpid()

    found = {pid for _, pid in read(DataLoader(Where(), batch_size=4, num_workers=2))}
    assert len(found) == 2
    assert os.getpid() not in found


def test_a_loader_over_a_map_dataset_gets_this_feed():
    feed = feed_of(DataLoader(Numbers(), batch_size=4))
    assert isinstance(feed, MapFeed)
    assert feed.fingerprint() == {"dataset": "Numbers", "samples": SIZE}


class Ragged(Numbers):
    """Sample i is i % 3 zeros."""

    def __getitem__(self, index: int) -> Any:
        if index >= self.size:
            raise IndexError(f"no row {index}")
        return torch.zeros(index % 3)


class OwnBatches(Sampler[list[int]]):
    """A batch sampler without a sampler."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, SIZE]])


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.ranks)])
@pytest.mark.parametrize(
    ("dataset", "options", "notes"),
    [
        (
            Ragged(),
            {"batch_size": 2, "sampler": [3, 4]},
            ["dataset indices 3, 4", "collate_fn=...", "pad_seq"],
        ),
        (
            Ragged(),
            {"batch_size": 2, "sampler": [0, SIZE]},
            ["list, gives index 23", "Ragged, has 23 samples"],
        ),
        (
            Ragged(),
            {"batch_sampler": OwnBatches()},
            ["OwnBatches, gives index 23", "make the sampler of this"],
        ),
        (
            TensorDataset(torch.zeros(4)),
            {"batch_size": 2, "sampler": SubsetRandomSampler([3, 9])},
            ["SubsetRandomSampler, gives index 9", "TensorDataset, has 4 samples"],
        ),
    ],
)
def test_a_sampler_of_another_dataset_and_samples_of_several_sizes_are_named(
    dataset, options, notes, workers
):
    feed = feed_of(DataLoader(dataset, num_workers=workers, **options))
    with closing(feed), pytest.raises((IndexError, RuntimeError)) as raised:
        list(feed.steps(0))
    for part in notes:
        assert part in "\n".join(raised.value.__notes__)


@pytest.mark.parametrize("kind", [IndexError, ValueError])
def test_no_sampler_is_blamed_for_an_error_of_the_dataset(kind):
    class Broken(Numbers):
        def __getitem__(self, index: int) -> int:
            raise kind("mine")

    with pytest.raises(kind, match="mine") as raised:
        list(feed_of(DataLoader(Broken(), 2)).steps(0))
    assert "sampler" not in "\n".join(raised.value.__notes__)
