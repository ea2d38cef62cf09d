"""Gradients of four ranks whose sum bfloat16 has not in every order: ``python reduction_job.py FOLDER``."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import torch
from helpers.trainers import quiet
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import TrainModule
from paceline.callbacks import Callback

PARTS = (4.0, 2.0**-6, 2.0**-6, 2.0**-5)
MEAN = 1 + 2.0**-6


class Sum(TrainModule):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(24))

    def training_step(self, batch):
        return (self.weight * batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Seen(Callback):
    def __init__(self):
        self.means = []

    def on_before_optimizer_step(self, trainer, optimizer):
        found = trainer.strategy.weights.full_gradients(trainer.module)["weight"]
        self.means.append(sorted(set(found.float().tolist())))


def means(strategy: str) -> list[list[float]]:
    """The gradients of two steps; rank r has the r-th number of each order of ``PARTS``."""
    rows = torch.tensor(list(itertools.permutations(PARTS))).T
    seen = Seen()
    trainer = quiet(
        strategy=strategy, devices=4, precision="bf16-true", max_steps=2, callbacks=[seen], run_dir=None
    )
    trainer.fit(Sum(), DataLoader(TensorDataset(torch.cat([rows, rows])), 1))
    return seen.means


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {strategy: means(strategy) for strategy in ("ddp", "fsdp")}
    (Path(sys.argv[1]) / f"{torch.distributed.get_rank()}.json").write_text(json.dumps(found))
