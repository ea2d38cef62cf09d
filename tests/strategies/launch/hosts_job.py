"""A script that trains in 64 bits on the hosts of a job, and notes which samples each step has.

python hosts_job.py SETTINGS   (JSON: arguments of ``train``)
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint

SAMPLES, STEP = 160, 8  # 20 steps


def note(what: str, **values: Any) -> None:
    """A line in ``notes``, which all hosts share; lines that are this short are written as a whole."""
    with open("notes", "a") as file:
        file.write(json.dumps({"what": what, "host": platform.node(), "pid": os.getpid()} | values) + "\n")


class Notes(Callback):
    """Notes the begin of each attempt, and how far it is."""

    def on_fit_start(self, trainer):
        note("begins", step=trainer.global_step, rank=trainer.rank, world=trainer.world_size)

    def on_step_end(self, trainer):
        if trainer.is_global_zero:
            note("step", step=trainer.global_step, world=trainer.world_size)


class Net(TrainModule):
    """Two layers, by steps that take a moment."""

    def __init__(self, seconds: float, alone: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.seconds, self.alone = seconds, alone

    def training_step(self, batch):
        x, numbers = batch
        note("reads", step=self.global_step + 1, samples=numbers.tolist(), world=self.trainer.world_size)
        time.sleep(self.seconds if self.trainer.world_size > 1 else self.alone)
        loss = self.layers(x).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.01)


def train(seconds: float = 0.0, alone: float = 0.0, **settings: Any) -> None:
    """Train, and note the weights and the losses.

    Args:
        seconds: What each micro-batch takes.
        alone: The same where one rank is left.
    """
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(SAMPLES, 4, generator=generator, dtype=torch.float64)
    module = Net(seconds, alone)
    trainer = Trainer(
        strategy="ddp", accelerator="cpu", name="n", progress=False, max_epochs=1, precision="64",
        global_batch_size=STEP, log_every=1, loggers=["-tensorboard", "-curves"],
        callbacks=[Notes(), Checkpoint(every=4)], clip_grad_norm=0.5, **settings,
    )  # fmt: skip
    run = trainer.fit(module, DataLoader(TensorDataset(x, torch.arange(SAMPLES)), STEP // 2, shuffle=True))
    if trainer.is_global_zero:
        weights = torch.cat([p.detach().flatten() for p in module.parameters()]).tolist()
        losses = run.metrics["train/loss"]
        note("done", weights=weights, losses=list(map(float, losses.values)), folder=str(run.folder))


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(**json.loads(sys.argv[1]))
