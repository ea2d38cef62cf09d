"""Reading a feed in a test: its steps, and their samples as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from itertools import islice
from typing import Any

import numpy as np
import torch

from paceline.strategies import Collectives, Environment
from paceline.trainer.data.factory import make_feed
from paceline.trainer.data.feed import Feed, FeedSettings

SEED = 5


class Quiet(list):
    """Takes the feed's lines."""

    def __call__(self, line: str) -> None:
        self.append(line)


def ranks_of(rank: int = 0, world_size: int = 1) -> Collectives:
    """A rank among others that it does not talk to."""
    return Collectives(Environment(torch.device("cpu"), rank, world_size))


def feed_of(data: Any, rank: int = 0, world_size: int = 1, **settings: Any) -> Feed:
    ranks = ranks_of(rank, world_size)
    return make_feed(data, FeedSettings(**{"seed": SEED, "ranks": ranks, "log_line": Quiet(), **settings}))


def take(feed: Feed, epoch: int = 0, position: int = 0, steps: int | None = None) -> list[Any]:
    with closing(feed.steps(epoch, position)) as iterator:
        return list(islice(iterator, steps))


def rows(steps: Iterable[Any]) -> list[Any]:
    """Sample by sample, as plain data."""
    found: list[Any] = []
    for batches, sizes, _, _ in steps:
        for batch, size in zip(batches, sizes, strict=True):
            if not size:  # something to run on a rank that has no sample
                continue
            columns = batch if isinstance(batch, (list, tuple)) else [batch]
            samples = [tuple(row) for row in zip(*(c.tolist() for c in columns), strict=True)]
            assert len(samples) == size
            found += samples if len(columns) > 1 else [row[0] for row in samples]
    return found


def read(data: Any, epoch: int = 0, position: int = 0, **settings: Any) -> list[Any]:
    return rows(take(feed_of(data, **settings), epoch, position))


def same_state(first: Any, second: Any) -> bool:
    """Whether two states of the CPU's generators are equal."""
    numpy = zip(first[2], second[2], strict=True)
    return (
        torch.equal(first[0], second[0])
        and first[1] == second[1]
        and all(np.array_equal(a, b) for a, b in numpy)
    )
