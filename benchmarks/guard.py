"""What looking for signals and for numbers that are not finite costs a step, on one CPU rank.

The run of ``overhead.py`` (a tiny MLP) with nonfinite="raise" and "ignore", in turn; an iteration with and
without the look for a signal. Prints a table; ``--json FILE`` writes it.
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
from overhead import BATCH, WIDTH, Plain

from paceline import Trainer
from paceline.trainer.signals import SignalStop

STEPS = 3000


def one_run(batches: list, nonfinite: str, folder: str) -> float:
    """Microseconds a step."""
    quiet = {"accelerator": "cpu", "progress": False, "checkpoint": False, "loggers": False}
    trainer = Trainer(**quiet, nonfinite=nonfinite, max_steps=STEPS, run_dir=folder)
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.fit(Plain(), batches)
    return trainer.state.elapsed / STEPS * 1e6


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
    batches = [(torch.randn(BATCH, WIDTH), torch.randint(0, 2, (BATCH,))) for _ in range(STEPS)]
    guard, look = [], []
    signals = SignalStop(lambda why, number: None, give_up_reads=True)
    with tempfile.TemporaryDirectory() as folder:
        one_run(batches, "raise", folder)
        for _ in range(arguments.rounds):
            guard.append(one_run(batches, "raise", folder) - one_run(batches, "ignore", folder))
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
        about = {"rounds": arguments.rounds, "steps": STEPS, "torch": torch.__version__}
        arguments.json.write_text(json.dumps(about | {"microseconds_a_step": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
