"""Two ranks of which one has something due after other steps than the other."""

from __future__ import annotations

import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint
from paceline.trainer.checkpoint.writer import Save

DATA = TensorDataset(torch.linspace(-1, 1, 24).reshape(24, 1))


class Slow(TrainModule):
    """Its steps take so long that the ranks agree after every tenth or so."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 1)

    def training_step(self, batch):
        time.sleep(0.02)
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch):
        self.log("loss", self.net(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Uneven(Callback):
    """Is due after each step on rank 1, and never on rank 0."""

    def __init__(self, rank):
        self.rank = rank

    def next_due(self, at):
        return at.global_step + 1 if self.rank else float("inf")

    def on_step_boundary(self, trainer):
        pass


class Evaluates(Callback):
    """Evaluates under way; rank 1 asks for an end."""

    def __init__(self, remainder):
        self.remainder, self.evaluated = remainder, []

    def on_fit_start(self, trainer):
        self.evaluate = trainer.loop.evaluation_of(DataLoader(DATA, 4), "mine")

    def on_step_end(self, trainer):
        if trainer.global_step % 7 == self.remainder:
            self.evaluate()
            self.evaluated.append(trainer.global_step)
        if trainer.global_step == 60 and trainer.rank == 1:
            trainer.stop("enough")


class Sums(Callback):
    """Speaks to the other rank whenever it is called, and names no step."""

    def __init__(self):
        self.called = []

    def next_due(self, at):
        return float("inf")

    def on_step_end(self, trainer):
        self.called.append(int(trainer.ranks.all_reduce(torch.tensor(trainer.global_step), "max")))

    def on_step_boundary(self, trainer):
        self.on_step_end(trainer)


def save_slowly(self, work, background, run=Save.run):
    """A checkpoint that takes longer than some steps."""

    def slow():
        time.sleep(0.3)
        work()

    run(self, slow, background)


def on_rank(folder, kind, remainder):
    sums = Sums()
    evaluates, usual = Evaluates(remainder), {"progress": False, "loggers": False, "timeouts": "20s"}
    rank = int(os.environ["RANK"])
    if kind == "next_due":
        callbacks = [sums, Uneven(rank), evaluates]
        folder = None
    else:
        callbacks = [sums, Checkpoint(20), evaluates]
        if rank == 1:
            Save.run = save_slowly
    trainer = Trainer(
        strategy="ddp",
        accelerator="cpu",
        devices=2,
        callbacks=callbacks,
        run_dir=folder,
        max_epochs=1,
        log_every="1000st",
        **usual,
    )
    trainer.fit(Slow(), DataLoader(TensorDataset(torch.zeros(480, 1)), 2))
    return {"step": trainer.global_step, "evaluated": evaluates.evaluated, "called": sums.called}
