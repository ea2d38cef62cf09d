"""What looking for signals and for numbers that are not finite costs a step, on one CPU rank.

One run of the tiny MLP of ``overhead.py`` with and without the guard, which is switched every 20 steps: the
medians of blocks that differ in nothing else. An iteration with and without the look for a signal. Prints a
table; ``--json FILE`` writes it.
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
from unittest import mock

import torch
from tiny import Plain, make_batches

from paceline import Trainer
from paceline.callbacks import Callback
from paceline.trainer.faults.signals import SignalStop
from paceline.trainer.loops.optimizer_step import OptimizerStep

BLOCK, BLOCKS = 20, 1000


class Switch(Callback):
    """Every other block of steps runs without the guard."""

    def __init__(self, steps: list[OptimizerStep]) -> None:
        self.looked_up, self.guard, self.steps = steps, None, 0
        self.begun = 0.0
        self.seconds: dict[bool, list[float]] = {True: [], False: []}

    def on_step_end(self, trainer, outputs):
        self.steps += 1
        if self.steps % BLOCK:
            return
        (step,) = self.looked_up
        self.seconds[step.guard is not None].append(time.perf_counter() - self.begun)
        step.guard = None if step.guard is not None else step.context.guard
        self.begun = time.perf_counter()


def one_run(batches: list, folder: str) -> float:
    """Microseconds a step that the guard costs."""
    steps: list[OptimizerStep] = []
    begin = OptimizerStep.__init__

    def kept(step: OptimizerStep, *arguments) -> None:
        steps.append(step)
        begin(step, *arguments)

    switch = Switch(steps)
    quiet = {"accelerator": "cpu", "progress": False, "checkpoint": False, "loggers": False}
    with mock.patch.object(OptimizerStep, "__init__", kept), contextlib.redirect_stdout(io.StringIO()):
        Trainer(**quiet, callbacks=[switch], max_steps=BLOCK * BLOCKS, run_dir=folder).fit(Plain(), batches)
    on, off = (statistics.median(switch.seconds[guarded][1:]) for guarded in (True, False))
    return (on - off) / BLOCK * 1e6


def one_pass(signals: SignalStop | None, count: int = 200_000) -> float:
    """Microseconds an item."""
    items = iter(range(count))
    start = time.perf_counter()
    for _ in items if signals is None else signals.interruptible(items):
        pass
    return (time.perf_counter() - start) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    batches = make_batches(500)
    guard, look = [], []
    signals = SignalStop(lambda why, number: None, give_up_reads=True)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.rounds):
            guard.append(one_run(batches, folder))
            look.append(one_pass(signals) - one_pass(None))
    signals.close()
    found = {
        "losses and gradients": round(statistics.median(guard), 2),
        "the look for a signal": round(statistics.median(look), 2),
    }
    found["together"] = round(sum(found.values()), 2)
    for name, value in found.items():
        print(f"{name:24} {value:6.2f} us a step")
    if arguments.json:
        about = {
            "rounds": arguments.rounds,
            "blocks": BLOCKS,
            "steps a block": BLOCK,
            "torch": torch.__version__,
        }
        arguments.json.write_text(json.dumps(about | {"microseconds_a_step": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
