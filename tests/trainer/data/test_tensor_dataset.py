"""Batches of tensors' rows: what the user's own loader gives, to the bit, without reading single rows."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
import torch
from helpers.feeds import ranks_of
from helpers.pairwise import soaked
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

from paceline.trainer.data.factory import make_feed
from paceline.trainer.data.feed import FeedSettings
from paceline.trainer.rng import order_seed, seed_everything

SEED, SIZE = 5, 23
NUMBERS = torch.arange(SIZE * 6.0).reshape(SIZE, 2, 3)
LABELS = torch.arange(SIZE)


class Unread(TensorDataset):
    """A subclass: what it does with an index is its own."""

    def __getitem__(self, index: Any) -> Any:
        return tuple(tensor[index] + 1 for tensor in self.tensors)


class Slow:
    """Rows may not be read one by one."""

    def __enter__(self) -> None:
        self.usual = TensorDataset.__getitem__

        def refuse(dataset: TensorDataset, index: Any) -> Any:
            raise AssertionError("a single row is read")

        TensorDataset.__getitem__ = refuse  # type: ignore[method-assign]

    def __exit__(self, *error: object) -> None:
        TensorDataset.__getitem__ = self.usual  # type: ignore[method-assign]


def batches_of(loader: DataLoader, epoch: int = 0, **settings: Any) -> list[Any]:
    feed = make_feed(loader, FeedSettings(seed=SEED, **settings))
    try:
        return [batch for step in feed.steps(epoch) for batch in step[0]]
    finally:
        feed.close()


def by_hand(loader: DataLoader, epoch: int = 0) -> list[Any]:
    seed_everything(order_seed(SEED, epoch))
    return list(loader)


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert type(mine) is type(other)
        parts = (
            zip([mine], [other], strict=True)
            if isinstance(mine, torch.Tensor)
            else zip(mine, other, strict=True)
        )
        for a, b in parts:
            assert (a.dtype, a.shape, a.stride(), a.requires_grad) == (
                b.dtype,
                b.shape,
                b.stride(),
                b.requires_grad,
            )
            assert torch.equal(a, b)


DATASETS = {
    "two": lambda: TensorDataset(NUMBERS, LABELS),
    "one": lambda: TensorDataset(NUMBERS),
    "no dimension": lambda: TensorDataset(LABELS),
    "types": lambda: TensorDataset(LABELS > 4, NUMBERS.to(torch.complex64), NUMBERS.half(), LABELS.byte()),
    "token ids": lambda: TensorDataset(
        *(NUMBERS.to(t) for t in (torch.uint16, torch.uint32, torch.uint64))
    ),
    "subset": lambda: Subset(TensorDataset(NUMBERS, LABELS), range(3, 20)),
    "subset of a subset": lambda: Subset(Subset(TensorDataset(NUMBERS), list(range(1, 20, 2))), [4, 0, 4]),
    "subset by numpy": lambda: Subset(TensorDataset(NUMBERS, LABELS), np.arange(2, 15)),
    "subset by array": lambda: Subset(TensorDataset(NUMBERS, LABELS), array("q", [5, 1, 1, 9])),
    "split": lambda: random_split(TensorDataset(NUMBERS, LABELS), [15, 8])[0],
}


READ = [(name, shuffle, workers) for name in DATASETS for shuffle in (True, False) for workers in (0, 2)]
USUAL = [(name, bool(n % 2), 2 * (n % 4 > 1)) for n, name in enumerate(DATASETS)]


@pytest.mark.parametrize(("name", "shuffle", "workers"), soaked(READ, USUAL))
def test_batches_are_the_loader_s_own_and_no_row_is_read_alone(name, shuffle, workers):
    dataset = DATASETS[name]()
    loader = DataLoader(dataset, 4, shuffle=shuffle, num_workers=workers)
    theirs = by_hand(DataLoader(dataset, 4, shuffle=shuffle), epoch=1)
    with Slow():
        ours = batches_of(loader, epoch=1)
    assert_same(ours, theirs)


def test_a_tensor_is_a_dataset_too():
    loader = DataLoader(NUMBERS, 4, shuffle=True)
    assert_same(batches_of(loader), by_hand(loader))


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: RandomSampler(LABELS, replacement=True, num_samples=30),
        lambda: WeightedRandomSampler([1.0] * SIZE, 9),
        lambda: SequentialSampler(LABELS),
    ],
)
def test_samplers_of_all_kinds(sampler):
    loader = DataLoader(TensorDataset(NUMBERS, LABELS), 4, sampler=sampler(), drop_last=True)
    with Slow():
        ours = batches_of(loader)
    assert_same(ours, by_hand(loader))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_sampler_of_the_user_s(workers):
    class Pairs(BatchSampler):
        def __iter__(self):
            yield from [[1, 2], [5], [9, 0, 3]]

    dataset = TensorDataset(NUMBERS, LABELS)
    loader = DataLoader(dataset, batch_sampler=Pairs(LABELS, 2, False), num_workers=workers)
    with Slow():
        ours = batches_of(loader)
    assert_same(ours, by_hand(DataLoader(dataset, batch_sampler=Pairs(LABELS, 2, False))))


def test_steps_of_several_ranks_and_from_the_middle():
    dataset = TensorDataset(LABELS)
    loader = DataLoader(dataset, 2, shuffle=True)
    whole = torch.cat([batch[0] for batch in batches_of(loader)])
    for position in (0, 8, 16):
        found = {}
        for rank in (0, 1):
            feed = make_feed(loader, FeedSettings(seed=SEED, ranks=ranks_of(rank, 2), accumulate=2))
            found[rank] = [[b[0].tolist() for b in s[0]] for s in feed.steps(0, position)]
        steps = zip(found[0], found[1], strict=True)
        pairs = [pair for mine, other in steps for pair in zip(mine, other, strict=True)]
        flat = [number for pair in pairs for part in pair for number in part]
        rest = whole[position:].tolist()
        assert flat[: len(rest) - len(rest) % 8] == rest[: len(rest) - len(rest) % 8]
        # A rank without a sample is given the step's first one.
        assert set(flat) == set(rest)


@pytest.mark.parametrize(
    "dataset",
    [
        Unread(NUMBERS, LABELS),
        TensorDataset(NUMBERS.transpose(1, 2), LABELS),
        Subset(TensorDataset(NUMBERS), [-1, 2, 5, 7]),
        Subset(TensorDataset(NUMBERS), array("i", [3, 0, 5, 0])),
        Subset(TensorDataset(NUMBERS), {0: 5, 1: 7, 2: 8}),
        Subset(TensorDataset(NUMBERS), torch.tensor([4, 1, 1])),
    ],
    ids=["subclass", "strides", "from the end", "short array", "mapping", "tensor"],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_all_others_are_read_as_torch_reads_them(dataset, workers):
    theirs = by_hand(DataLoader(dataset, 4, shuffle=True))
    ours = batches_of(DataLoader(dataset, 4, shuffle=True, num_workers=workers))
    assert_same(ours, theirs)


def test_lazily_conjugated_numbers():
    loader = DataLoader(TensorDataset(NUMBERS.to(torch.complex64).conj()), 4)
    assert_same(batches_of(loader), by_hand(loader))


class Other:
    """A sampler of whatever it is given."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self):
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@pytest.mark.parametrize("items", [[3, -1, 4], [np.int64(3), 1, 4]])
def test_indices_that_are_no_row_numbers(items):
    loader = DataLoader(TensorDataset(NUMBERS, LABELS), 2, sampler=Other(items))
    assert_same(batches_of(loader), by_hand(loader))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_index_that_is_not_there_is_an_error_and_no_other_row(workers):
    loader = DataLoader(TensorDataset(NUMBERS), 2, sampler=Other([3, SIZE]), num_workers=workers)
    with pytest.raises(IndexError, match="out of"):
        batches_of(loader)


def test_a_collate_function_of_the_user_s_sees_rows():
    loader = DataLoader(TensorDataset(NUMBERS, LABELS), 4, collate_fn=len)
    assert batches_of(loader) == by_hand(loader)


class Fours(BatchSampler):
    """Batches of four, as units."""


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("units", [False, True])
def test_tensors_exchanged_between_epochs_are_read(units, workers):
    dataset = TensorDataset(LABELS)
    loader = DataLoader(dataset, 4, num_workers=workers)
    if units:
        sampler = Fours(SequentialSampler(LABELS), 4, False)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=workers)
    feed = make_feed(loader, FeedSettings(seed=SEED))
    assert next(feed.steps(0))[0][0][0].tolist() == [0, 1, 2, 3]
    dataset.tensors = (LABELS + 100,)
    assert next(feed.steps(1))[0][0][0].tolist() == [100, 101, 102, 103]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator")
def test_tensors_on_a_device_and_pinned_ones():
    device = torch.accelerator.current_accelerator()
    loader = DataLoader(TensorDataset(NUMBERS.to(device), LABELS.to(device)), 4, shuffle=True)
    assert_same(batches_of(loader), by_hand(loader))
    (x, y), *_ = batches_of(DataLoader(TensorDataset(NUMBERS, LABELS), 4, pin_memory=True))
    assert x.is_pinned()
    assert y.is_pinned()


def test_a_program_s_own_way_to_collate_is_taken(monkeypatch):
    from torch.utils.data._utils.collate import default_collate_fn_map

    monkeypatch.setitem(default_collate_fn_map, tuple, lambda batch, **_: "mine")
    assert batches_of(DataLoader(TensorDataset(LABELS), 20)) == ["mine", "mine"]


def test_a_batch_is_its_own():
    dataset = TensorDataset(NUMBERS.clone())
    for step in make_feed(DataLoader(dataset, 4), FeedSettings(seed=SEED)).steps(0):
        step[0][0][0].fill_(-1)
    assert torch.equal(dataset.tensors[0], NUMBERS)
