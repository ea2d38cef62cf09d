"""Beginning in the middle of an epoch of 10 million samples reads nothing and takes little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from helpers.jobs import load_job
from torch.utils.data import DataLoader

from paceline.trainer.data.factory import make_feed
from paceline.trainer.data.feed import FeedSettings

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "seek.py"
SAMPLES = 10_000_000


def megabytes(what: str) -> float:
    command = [sys.executable, str(BENCHMARK), "--one", what, "--samples", str(SAMPLES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)[1]


def test_it_takes_less_than_200_megabytes_beyond_the_samplers_own():
    assert megabytes("seek") < megabytes("sampler") + 200


def test_no_sample_before_the_position_is_read():
    class Counting(load_job(BENCHMARK).Numbers):
        read = 0

        def __getitem__(self, index: int) -> int:
            self.read += 1
            return index

    data = Counting(100_000)
    feed = make_feed(DataLoader(data, batch_size=8, shuffle=True), FeedSettings(seed=1))
    order = list(feed.order(0))
    batches, _, _, _ = next(feed.steps(0, 50_000))
    assert batches[0].tolist() == order[50_000:50_008]
    assert data.read == 8
