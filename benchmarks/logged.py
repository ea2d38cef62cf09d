"""Microseconds that ``self.log`` costs a step: one value, and ten.

    python benchmarks/logged.py [--rounds 5] [--json FILE]

One run of the tiny MLP of ``overhead.py`` logs no value, one, and ten, alternating every 20 steps: medians
of blocks that differ in nothing else. A value is the loss's tensor, which has to be read, or a number.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from tiny import Plain, make_batches
from torch.nn import functional as F

from paceline import Trainer

BLOCK, BLOCKS = 20, 1500
COUNTS = (0, 1, 10)
NAMES = [f"value_{number}" for number in range(max(COUNTS))]


class Logging(Plain):
    """Times its own blocks of steps."""

    def __init__(self, as_tensor: bool) -> None:
        super().__init__()
        self.as_tensor, self.steps, self.begun = as_tensor, 0, 0.0
        self.names: list[str] = []
        self.seconds: dict[int, list[float]] = {count: [] for count in COUNTS}

    def training_step(self, batch, batch_idx):
        if self.steps % BLOCK == 0:
            now = time.perf_counter()
            self.seconds[len(self.names)].append(now - self.begun)
            self.names = NAMES[: COUNTS[self.steps // BLOCK % len(COUNTS)]]
            self.begun = time.perf_counter()
        self.steps += 1
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        value = loss if self.as_tensor else 0.5
        for name in self.names:
            self.log(name, value)
        return loss


def one_run(batches: list, as_tensor: bool) -> dict[int, float]:
    """Microseconds a step beyond one that logs nothing, by the count of values."""
    module = Logging(as_tensor)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        off = {"accelerator": "cpu", "progress": False, "checkpoint": False, "loggers": False}
        Trainer(**off, log_every=BLOCK * BLOCKS, run_dir=folder).fit(module, batches)
    medians = {count: statistics.median(found[1:]) / BLOCK * 1e6 for count, found in module.seconds.items()}
    return {count: value - medians[0] for count, value in medians.items() if count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    batches = make_batches(BLOCK * BLOCKS)
    result: dict[str, dict[str, float]] = {}
    print(f"{'logged':<10}{'1 value':>10}{'10 values':>12}   us a step")
    for name, as_tensor in {"tensors": True, "numbers": False}.items():
        runs = [one_run(batches, as_tensor) for _ in range(arguments.rounds)]
        one, ten = (round(statistics.median(run[count] for run in runs), 2) for count in COUNTS[1:])
        result[name] = {"one_value_us": one, "ten_values_us": ten}
        print(f"{name:<10}{one:>10}{ten:>12}")
    if arguments.json:
        about = {"torch": torch.__version__, "rounds": arguments.rounds}
        arguments.json.write_text(json.dumps({"about": about, "result": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
