"""Measures norms and evaluates on two ranks, under each strategy. python norms_job.py FOLDER"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from helpers.averages import Net, X, fit
from torch.utils.data import DataLoader, TensorDataset

from paceline.callbacks import Callback, Evaluator, Norms

FOLDER = Path(sys.argv[1])


class Evaluated(Net):
    """Its weights do not change in the first step."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Kept(Callback):
    def __init__(self):
        self.norms = []

    def on_step_end(self, trainer, outputs):
        self.norms.append([trainer.metrics[f"norm/{what}"] for what in ("gradient", "weight")])


def main() -> None:
    other = DataLoader(TensorDataset(X[:21]), 4)
    for strategy in sys.argv[2:]:
        usual = {"size": 2, "devices": 2, "strategy": strategy}
        kept = Kept()
        fit(Net(), Norms(1), kept, max_epochs=1, **usual)
        trainer = fit(Evaluated(), Evaluator(other, "other", 1), max_steps=1, **usual)
        found = {"norms": kept.norms, "first evaluation": trainer.metrics["val/other/loss"]}
        (FOLDER / f"{strategy}-{trainer.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
