"""A clock that only the code of a test moves, and what is trained by it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from paceline import Trainer, TrainModule


class PlantedClock:
    """In the place of ``time.perf_counter``."""

    now = 100.0

    def __call__(self):
        return self.now


class Rows(Dataset):
    """A sample of 3 numbers takes a second to read."""

    def __init__(self, clock, samples=4):
        self.clock, self.samples = clock, samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        self.clock.now += 1
        return torch.ones(3)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


class TimedNet(TrainModule):
    """A step takes ``step(number)`` seconds, a validation batch 300, what is saved 7000."""

    def __init__(self, clock, fails_at=None, step=lambda number: 10):
        super().__init__()
        self.clock, self.fails_at, self.step_seconds = clock, fails_at, step
        self.net = Block()

    def training_step(self, batch):
        self.clock.now += self.step_seconds(self.global_step + 1)
        loss = self.net(batch).square().mean()
        if self.global_step == self.fails_at:
            raise ValueError("enough")
        return loss

    def validation_step(self, batch):
        self.clock.now += 300

    def on_save_checkpoint(self, trainer, state):
        self.clock.now += 7000

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(clock, *callbacks, resume=None, module=None, samples=4, **settings):
    """Train with batches of 2 samples for two epochs, each with one batch of validation."""
    usual = {
        "accelerator": "cpu",
        "progress": False,
        "loggers": False,
        "checkpoint": False,
        "max_epochs": 2,
    }
    trainer = Trainer(callbacks=callbacks, name="n", **(usual | settings))
    val = DataLoader(torch.ones(2, 3), 2)
    trainer.fit(module or TimedNet(clock), DataLoader(Rows(clock, samples), 2), val, resume=resume)
    return trainer
