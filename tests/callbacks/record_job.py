"""Trains on one rank or two, where rank 1 changes its rate in the end. python record_job.py FOLDER"""

from __future__ import annotations

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback

X = torch.stack([torch.arange(24.0), torch.linspace(-1, 1, 24)], 1)


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Linear(1, 1)

    def training_step(self, batch):
        return self.net(batch[0][:, 1:]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Changes(Callback):
    """Rank 1 alone has another rate after the last step."""

    def on_step_end(self, trainer):
        if trainer.rank == 1 and trainer.global_step > 11:
            trainer.optimizers[0].param_groups[0]["lr"] = 0.2


def trainer(folder, world=1, **settings):
    data = DataLoader(TensorDataset(X), 4 // world, shuffle=True)
    usual = {"max_epochs": 2, "checkpoint": False, "progress": False, "loggers": False, "name": "net"}
    made = Trainer(
        devices=world, accelerator="cpu", run_dir=folder,
        **usual | {"strategy": "ddp" if world > 1 else "single"} | settings,
    )  # fmt: skip
    return made, data


if __name__ == "__main__":
    folder, *more = sys.argv[1:]
    settings = {"strategy": more[0], "clip_grad_norm": float(more[1])} if more else {"callbacks": Changes()}
    made, data = trainer(folder, int(os.environ["WORLD_SIZE"]), **settings)
    made.fit(Net(), data)
