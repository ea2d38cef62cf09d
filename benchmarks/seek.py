"""Seconds and memory to begin in the middle of an epoch of 10 million samples.

    python benchmarks/seek.py [--samples 10000000] [--rounds 5] [--json FILE]

"sampler": what torch's RandomSampler takes by itself to give one epoch's order. "seek": making the feed
and reading the first batch of the epoch's second half, the sampler's own work included. Each is measured
in a separate process, interleaved; memory is the peak of resident memory beyond the start. Medians.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from paceline.trainer.data.factory import make_feed
from paceline.trainer.data.feed import FeedSettings


class Numbers(Dataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def megabytes(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


def measure(what: str, samples: int) -> tuple[float, float]:
    """Seconds, and megabytes beyond the start."""
    torch.set_num_threads(1)
    data = Numbers(samples)
    before, start = megabytes("VmRSS"), time.perf_counter()
    if what == "sampler":
        for _ in RandomSampler(data):
            pass
    else:
        feed = make_feed(DataLoader(data, batch_size=64, shuffle=True), FeedSettings(seed=1))
        next(feed.steps(0, samples // 2))
    return time.perf_counter() - start, megabytes("VmHWM") - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.samples)))
        return
    found: dict[str, list[tuple[float, float]]] = {"sampler": [], "seek": []}
    for _ in range(given.rounds):
        for what, results in found.items():
            command = [sys.executable, __file__, "--one", what, "--samples", str(given.samples)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results.append(json.loads(done.stdout))
    medians = {w: [statistics.median(column) for column in zip(*r, strict=True)] for w, r in found.items()}
    (own_s, own_mb), (seek_s, seek_mb) = medians["sampler"], medians["seek"]
    result = {
        "samples": given.samples,
        "sampler": {"seconds": round(own_s, 2), "megabytes": round(own_mb)},
        "seek": {"seconds": round(seek_s, 2), "megabytes": round(seek_mb)},
        "ratio_of_seconds": round(seek_s / own_s, 2),
        "megabytes_beyond_the_sampler": round(seek_mb - own_mb),
        "rounds": given.rounds,
        "torch": torch.__version__,
        "machine": platform.machine(),
    }
    print(json.dumps(result, indent=1))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
