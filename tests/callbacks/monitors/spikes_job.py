"""Skips and rolls back spikes on two ranks, under each strategy. python spikes_job.py FOLDER"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from helpers.spikes import Net, fit

from paceline.callbacks import Checkpoint, LossSpikes

FOLDER = Path(sys.argv[1])


def main() -> None:
    for strategy in sys.argv[2:]:
        found = {}
        for action in ("skip", "roll_back"):
            module, folder = Net(), FOLDER / strategy / action
            callbacks = [LossSpikes(4.0, 5, action=action), Checkpoint("4st", keep=None)]
            trainer = fit(module, *callbacks, size=2, devices=2, strategy=strategy, run_dir=folder)
            found[action] = trainer.strategy.weights.full_tensors(module)
        if trainer.is_global_zero:
            torch.save(found, FOLDER / f"{strategy}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
