"""What a feed does alike whatever it reads: samples by their index, a stream, ready batches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers.feeds import feed_of, read, same_state
from torch.utils.data import DataLoader, Dataset, IterableDataset

from paceline.trainer.rng import cpu_state

pytestmark = pytest.mark.usefixtures("no_worker_stays")

SIZE = 23


class Numbers(Dataset):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return index


class Stream(IterableDataset):
    """The samples of ``numbers``, one after another."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[Any]:
        return (self.numbers[i] for i in range(SIZE))


DATA = {
    "indexed": lambda: DataLoader(Numbers(), batch_size=4),
    "stream": lambda: DataLoader(Stream(Numbers()), batch_size=4),
    "ready": lambda: list(torch.arange(SIZE).split(4)),
}


@pytest.mark.parametrize("kind", DATA)
def test_limits_count_batches(kind):
    def count(limit: Any, **settings: Any) -> int:
        return len(read(DATA[kind](), limit=limit, **settings))

    assert [count(limit) for limit in (1, 2, 6, 100)] == [4, 8, SIZE, SIZE]
    assert [count(part) for part in (1.0, 0.5, 0.001)] == [SIZE, 12, 4]  # a part is at least one batch
    assert count(3, accumulate=2) == 12
    assert feed_of(DATA[kind](), limit=3, accumulate=2).steps_per_epoch == 2


@pytest.mark.parametrize("kind", DATA)
def test_every_batch_is_transferred(kind):
    assert read(DATA[kind](), transfer=lambda batch: batch + 100) == list(range(100, 100 + SIZE))


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_in_the_dataset_keeps_its_type_and_the_generators(stream):
    class Broken(Numbers):
        def __getitem__(self, index: int) -> Any:
            torch.rand(3), random.random()
            if index == 9:
                raise KeyError("no such file")
            return index

    before = cpu_state()
    with pytest.raises(KeyError, match="no such file"):
        read(DataLoader(Stream(Broken()) if stream else Broken(), batch_size=4))
    assert same_state(before, cpu_state())


@pytest.mark.parametrize(
    ("options", "stream"),
    [({"shuffle": True}, False), ({"shuffle": True, "num_workers": 2}, False), ({}, True)],
)
def test_a_subclass_with_its_own_iter_stays_in_charge(options, stream):
    class Doubling(DataLoader):
        factor = 2

        def __iter__(self) -> Iterator[Any]:
            for batch in super().__iter__():
                yield batch * self.factor

    data = Stream(Numbers()) if stream else Numbers()
    loader = Doubling(data, batch_size=4, **options)
    loader.factor = 3
    plain = read(DataLoader(data, batch_size=4, **options))
    for settings, first in (
        ({}, 0),
        ({"position": 8}, 8),
        ({"accumulate": 2}, 0),
        ({"global_batch": 5}, 0),
    ):
        assert read(loader, **settings) == [3 * i for i in plain[first:]]


class Drawn(Numbers):
    def __getitem__(self, index: int) -> Any:
        return int(torch.randint(10**9, ())) + random.randrange(10**9)


class Draws:
    """Any iterable of batches that draws."""

    def __iter__(self) -> Iterator[Any]:
        return (torch.randint(10**9, (4,)) for _ in range(6))


DRAWING = {
    "indexed": lambda: DataLoader(Drawn(), batch_size=4),
    "stream": lambda: DataLoader(Stream(Drawn()), batch_size=4),
    "iterable": Draws,
}


@pytest.mark.parametrize("kind", DRAWING)
def test_draws_go_by_seed_epoch_and_position(kind):
    first, again, later, other = (
        read(DRAWING[kind](), epoch, seed=seed) for epoch, seed in ((0, 5), (0, 5), (1, 5), (0, 6))
    )
    assert first == again
    every = first + later + other
    assert len({*every}) == len(every)
