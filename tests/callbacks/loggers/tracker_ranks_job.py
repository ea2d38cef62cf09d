"""Trains on two ranks with a tracker. python tracker_ranks_job.py FOLDER"""

import sys
from pathlib import Path

import torch
from helpers.trackers import isolate, make
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(2, 1)

    def training_step(self, batch):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    isolate(root / "trackers")
    usual = {"accelerator": "cpu", "devices": 2, "progress": False, "log_every": 1, "max_epochs": 1}
    loggers = [make("mlflow"), "-tensorboard", "-curves"]
    trainer = Trainer(strategy="ddp", loggers=loggers, name="ranks", run_dir=root / "runs", **usual)
    trainer.fit(Net(), DataLoader(TensorDataset(torch.ones(16, 2)), 2))
