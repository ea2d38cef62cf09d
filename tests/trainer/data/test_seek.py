"""Beginning in the middle of an epoch of 10 million samples reads nothing and takes little memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.jobs import load_job
from helpers.ranks import run_ranks
from torch.utils.data import DataLoader

from paceline.trainer.data.epoch_order import drawn
from paceline.trainer.data.factory import make_feed
from paceline.trainer.data.feed import FeedSettings

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "seek.py"
SAMPLES = 10_000_000


def megabytes(what: str, folder: Path) -> float:
    done = run_ranks(BENCHMARK, 1, "--one", what, "--samples", SAMPLES, folder=folder)
    return json.loads(done.stdout)[1]


@pytest.mark.launch  # for its length
def test_it_takes_less_than_200_megabytes_beyond_the_samplers_own(tmp_path):
    assert megabytes("seek", tmp_path) < megabytes("sampler", tmp_path) + 200


def test_no_sample_before_the_position_is_read():
    class Counting(load_job(BENCHMARK).Numbers):
        read = 0

        def __getitem__(self, index: int) -> int:
            self.read += 1
            return index

    data = Counting(100_000)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    feed = make_feed(loader, FeedSettings(seed=1))
    order = drawn(loader, loader.sampler, units=False, seed=1, epoch=0).tolist()
    batches, _, _, _ = next(feed.steps(0, 50_000))
    assert batches[0].tolist() == order[50_000:50_008]
    assert data.read == 8
