"""Trains for eight steps, with one difference planted. python diff_job.py RUN_DIR PLANT [DEVICES]

Its class is read again by the traces of ``paceline diff --replay``, which start this script as it was.
"""

import os
import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from paceline import Trainer, TrainModule, seed_everything
from paceline.callbacks import Checkpoint

PLANTS = ("none", "worker", "augmentation", "layer", "rate", "threads", "shuffle", "draw", "loss")
FOLDER, PLANT = sys.argv[1], sys.argv[2]
DEVICES = int(sys.argv[3]) if len(sys.argv) > 3 else 1


class Data(Dataset):
    """32 samples with noise from a generator of the worker's own."""

    def __init__(self):
        self.noise = random.Random(0)

    def __len__(self):
        return 32

    def __getitem__(self, index):
        x = torch.linspace(-1, 1, 4) * (index + 1) / 32
        if PLANT == "augmentation" and index == 13:
            x = x.flip(0)
        return x, x.sum() + self.noise.random() / 100


def seed_worker(worker):
    own = 7 if PLANT == "worker" and worker == 1 else worker
    torch.utils.data.get_worker_info().dataset.noise = random.Random(own)


class Module(TrainModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, 8), nn.GELU() if PLANT == "layer" else nn.ReLU(), nn.Linear(8, 1)
        )
        self.long = nn.Parameter(torch.rand(400_000))
        self.unused = nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_idx):
        if PLANT == "draw" and self.global_step == 4:
            torch.rand(())
        loss = nn.functional.mse_loss(self.net(batch[0]).squeeze(1), batch[1].float())
        # A long sum, which threads divide.
        loss = loss + (self.long * self.long.roll(1)).mean() + 0 * torch.rand(()) + 0 * self.unused.sum()
        return loss * 1.25 if PLANT == "loss" and self.global_step == 5 else loss

    def configure_optimizers(self):
        # Of a parameter whose gradient is 0: where the weights of two ranks differ, their run ends.
        other = 0.02 if PLANT == "rate" and os.environ.get("RANK") == "1" else 0.01
        groups = [{"params": [*self.net.parameters(), self.long]}, {"params": [self.unused], "lr": other}]
        return torch.optim.SGD(groups, lr=0.01)


def main():
    torch.set_num_threads(2 if PLANT == "threads" else 1)
    seed_everything(0)
    data = DataLoader(
        Data(), 4 // DEVICES, shuffle=PLANT == "shuffle", num_workers=2, worker_init_fn=seed_worker,
        multiprocessing_context="fork",
    )  # fmt: skip
    trainer = Trainer(
        devices=DEVICES, strategy="ddp" if DEVICES > 1 else "single", accelerator="cpu", max_epochs=1,
        callbacks=Checkpoint(every=3, keep=None), loggers=False, progress=False, run_dir=FOLDER, name=PLANT,
    )  # fmt: skip
    trainer.fit(Module(), data)


if __name__ == "__main__":
    main()
