"""Trains on two ranks with a batch size that changes. python batch_size_job.py FOLDER"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from helpers.averages import Net, fit

from paceline.callbacks import BatchSizeScheduler, Checkpoint

FOLDER = Path(sys.argv[1])


def main() -> None:
    schedule = BatchSizeScheduler({1: 12, 2: 24})
    for strategy in sys.argv[2:]:
        module = Net()
        trainer = fit(module, schedule, size=2, devices=2, strategy=strategy)
        weights = {n: t.tolist() for n, t in trainer.strategy.weights.full_tensors(module).items()}
        found = {"steps": trainer.global_step, "weights": weights}
        (FOLDER / f"{strategy}-{trainer.rank}.json").write_text(json.dumps(found))
    kept = {"run_dir": FOLDER / "runs", "name": "saved", "devices": 2, "strategy": "ddp"}
    fit(Net(), schedule, Checkpoint(7, keep=None), size=2, **kept)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
