"""A long run: memory, file sizes and the cost of a step must not grow with it, nor with the data.

    python benchmarks/soak.py [--steps 200000] [--json FILE]

The tiny MLP of ``overhead.py`` over a shuffled DataLoader, in epochs of 2000 steps, validated after each,
with three logged values, TensorBoard, metrics.jsonl and checkpoints; every tenth of the run is a row. Then
shorter runs over data sets of growing size. Exits with 1 where anything has grown.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from tiny import BATCH, WIDTH, Plain
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer
from paceline.callbacks import Callback, Checkpoint

EPOCH = 2000
MOST_GROWTH = 8 * 2**20  # bytes of memory from the second tenth to the last
MOST_SLOWER = 1.25  # a step of the last tenth, or over the largest data set, against the first


class Net(Plain):
    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        for name in ("one", "two", "three"):
            self.log(name, loss)
        return loss

    def validation_step(self, batch):
        return F.cross_entropy(self.net(batch[0]), batch[1])


class Rows(Callback):
    """A row for each tenth: the median time of a step, memory, objects, file sizes."""

    def __init__(self, steps: int) -> None:
        self.tenth, self.rows = steps // 10, []
        self.process, self.seconds, self.before = psutil.Process(), [], 0.0

    def on_step_end(self, trainer, outputs):
        now = time.perf_counter()
        self.seconds.append(now - self.before)  # from one to the next: the data is read between
        self.before = now
        if trainer.global_step % self.tenth:
            return
        gc.collect()
        self.rows.append(
            {
                "step": trainer.global_step,
                "us_per_step": round(statistics.median(self.seconds) * 1e6, 1),
                "memory_mib": round(self.process.memory_info().rss / 2**20, 1),
                "objects": len(gc.get_objects()),
                "metrics_kib": (trainer.folder / "metrics.jsonl").stat().st_size // 1024,
                "tensorboard_kib": sum(f.stat().st_size for f in (trainer.folder / "tb").iterdir()) // 1024,
            }
        )
        self.seconds.clear()


def loader(samples: int) -> DataLoader:
    data = TensorDataset(torch.randn(samples, WIDTH), torch.randint(2, (samples,)))
    return DataLoader(data, BATCH, shuffle=True)


def run(steps: int, rows: Rows, samples: int, **settings: Any) -> list[dict[str, float]]:
    """The rows of a run."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = Trainer(
            accelerator="cpu", progress=False, max_steps=steps, run_dir=folder, **settings,
        )  # fmt: skip
        trainer.callbacks.append(rows)
        trainer.fit(Net(), loader(samples), loader(80))
    return rows.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    checkpoints = Checkpoint(every="10ep")
    rows = run(arguments.steps, Rows(arguments.steps), EPOCH * BATCH, callbacks=[checkpoints])
    print("".join(f"{name:>17}" for name in rows[0]))
    for row in rows:
        print("".join(f"{value:>17}" for value in row.values()))
    sizes = {}
    for samples in (10_000, 100_000, 1_000_000, 10_000_000):
        found = run(4000, Rows(4000), samples, checkpoint=False, validate_every=None)
        sizes[samples] = statistics.median(row["us_per_step"] for row in found)
        print(f"{samples:>12} samples: {sizes[samples]} us a step")
    grown = (rows[-1]["memory_mib"] - rows[1]["memory_mib"]) * 2**20
    slower = {
        "steps": rows[-1]["us_per_step"] / rows[1]["us_per_step"],
        "samples": sizes[10_000_000] / sizes[10_000],
    }
    objects = rows[-1]["objects"] - rows[1]["objects"]
    fine = grown <= MOST_GROWTH and max(slower.values()) <= MOST_SLOWER and objects <= 50
    print(f"memory grew by {grown / 2**20:.1f} MiB, {objects} objects; steps against the first: {slower}")
    if arguments.json:
        content = {"torch": torch.__version__, "rows": rows, "us_per_step_by_samples": sizes}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    raise SystemExit(0 if fine else 1)


if __name__ == "__main__":
    main()
