"""Trains with returned weights and writes rows, on one rank or two. python tokens_job.py FOLDER"""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint


class Module(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(1, 1)

    def training_step(self, batch):
        return {"loss": self.net(batch[0]).square().mean(), "weight": batch[0].sum()}

    def validation_step(self, batch):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-5)


class Publishes(Callback):
    def on_step_end(self, trainer, outputs):
        if trainer.global_step == 5:
            trainer.publish({"extra/value": 1.0})


def train(folder, world=1, **settings):
    """Samples 1.0, 2.0 ... 24.0 in steps of four, a log point every second one."""
    data = DataLoader(TensorDataset(torch.arange(1.0, 25.0).reshape(24, 1)), 4 // world)
    usual = {"log_every": 2, "validate_every": "3st", "max_epochs": 2, "progress": False}
    trainer = Trainer(
        strategy="ddp" if world > 1 else "single", devices=world, accelerator="cpu",
        loggers=["-tensorboard", "-curves"],
        callbacks=[Checkpoint(every=3), Publishes()], run_dir=folder, name="r", **usual | settings,
    )  # fmt: skip
    return trainer, data


if __name__ == "__main__":
    world = int(os.environ.get("WORLD_SIZE", 1))
    trainer, data = train(sys.argv[1], world, max_steps=7)
    trainer.fit(Module(), data, data)
    trainer, data = train(sys.argv[1], world)
    trainer.fit(Module(), data, data, resume="latest")
