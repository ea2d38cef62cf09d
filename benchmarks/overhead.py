"""Microseconds per step over a hand-written loop, on ready batches: only the loop is measured.

    python benchmarks/overhead.py [--steps 4000] [--rounds 7] [--json FILE]

"off": no progress bar, no loggers, no checkpoint. "typical": a progress bar, TensorBoard, metrics.jsonl
and one value logged per step. The loops run interleaved, round by round; medians are shown.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback, Curves, ModelSummary, Progress, TensorBoard

BATCH, WIDTH = 8, 16


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))


class Plain(TrainModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Logging(Plain):
    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss_again", loss, prog_bar=True)
        return loss


class Stopwatch(Callback):
    """Times the steps between the first and the last, so that start and end are left out."""

    def on_train_epoch_start(self, trainer):
        self.begun = time.perf_counter()

    def on_train_epoch_end(self, trainer):
        self.seconds = time.perf_counter() - self.begun


def raw(batches: list) -> float:
    """The loop one would write."""
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    begun = time.perf_counter()
    for x, y in batches:
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - begun


def off(batches: list) -> float:
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = Trainer(
            accelerator="cpu",
            progress=False,
            loggers=False,
            checkpoint=False,
            callbacks=[watch],
            run_dir=folder,
        )
        trainer.fit(Plain(), batches)
    return watch.seconds


class Terminal(io.StringIO):
    """Makes the progress bar believe that it draws on a terminal."""

    def isatty(self) -> bool:
        return True


def typical(batches: list) -> float:
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(Terminal()):
        trainer = Trainer(accelerator="cpu", checkpoint=False, callbacks=[watch], run_dir=folder)
        names = {type(c) for c in trainer.callbacks}
        assert {Progress, TensorBoard, ModelSummary, Curves} <= names
        trainer.fit(Logging(), batches)
    return watch.seconds


def measure(loops: dict[str, Callable[[list], float]], steps: int, rounds: int) -> dict[str, list[float]]:
    batches = [(torch.randn(BATCH, WIDTH), torch.randint(2, (BATCH,))) for _ in range(steps)]
    for loop in loops.values():
        loop(batches[:200])
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(rounds):
        order = list(loops.items())
        for name, loop in order if number % 2 else reversed(order):
            gc.collect()
            seconds[name].append(loop(batches) / steps * 1e6)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    times = measure({"raw": raw, "off": off, "typical": typical}, arguments.steps, arguments.rounds)
    base = statistics.median(times["raw"])
    result = {
        name: {
            "us_per_step": round(statistics.median(values), 2),
            "over_raw_us": round(
                statistics.median(v - r for v, r in zip(values, times["raw"], strict=True)), 2
            ),
            "ratio": round(statistics.median(values) / base, 3),
        }
        for name, values in times.items()
    }
    print(f"{'loop':<10}{'us/step':>10}{'over raw':>10}{'ratio':>8}")
    for name, row in result.items():
        print(f"{name:<10}{row['us_per_step']:>10}{row['over_raw_us']:>10}{row['ratio']:>8}")
    if arguments.json:
        about = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "steps": arguments.steps,
            "rounds": arguments.rounds,
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"about": about, "result": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
