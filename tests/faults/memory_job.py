"""Runs out of memory where it is asked to; on two ranks too.

python memory_job.py DEVICES    trains until memory runs out in step 3, on the last rank
"""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from paceline import Trainer, TrainModule, seed_everything
from paceline.callbacks import Callback, Checkpoint

SIZE, STEP, COUNT = 4, 3, 22
SECONDS = 120


def run_out(kind: str) -> None:
    """Have no memory left, as a device, torch on the host, or Python says it."""
    if kind == "device":
        raise torch.OutOfMemoryError("out of memory. Tried to allocate 20.00 GiB.")
    if kind == "host":
        torch.empty(2**50)
    raise MemoryError


class RunsOut(torch.autograd.Function):
    """Has no memory for its backward."""

    @staticmethod
    def forward(context, value, kind):
        context.kind = kind
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        run_out(context.kind)


class Greedy(torch.optim.AdamW):
    """Has no memory for its next update, where it is asked to."""

    greed: str | None = None

    def step(self, closure=None):
        if self.greed:
            run_out(self.greed)
        return super().step(closure)


class Net(TrainModule):
    """1000 weights.

    Args:
        where: ``"forward"``, ``"backward"``, ``"update"``, ``"validation"`` or ``""``.
        rank: On which rank.
    """

    def __init__(self, where: str = "", kind: str = "device", rank: int = 0) -> None:
        super().__init__()
        seed_everything(2)
        self.line = nn.Linear(100, 10, bias=False)
        self.where, self.kind, self.rank = where, kind, rank

    def training_step(self, batch):
        here = self.global_step + 1 == STEP and self.trainer.rank == self.rank
        if here and self.where == "forward":
            run_out(self.kind)
        loss = self.line(batch).square().mean()
        if here and self.where == "update":
            self.trainer.optimizers[0].greed = self.kind
        if here and self.where == "backward":
            return RunsOut.apply(loss, self.kind)
        return loss

    def validation_step(self, batch):
        if self.where == "validation":
            run_out(self.kind)

    def predict_step(self, batch):
        run_out(self.kind)

    def configure_optimizers(self):
        return Greedy(self.parameters(), lr=0.01)


class Manual(Net):
    """Steps by itself."""

    automatic_optimization = False

    def training_step(self, batch):
        loss = super().training_step(batch)
        self.manual_backward(loss)
        self.optimizers().step()
        self.optimizers().zero_grad()


class Kept(Callback):
    """The weights before the step that is under way."""

    def on_step_start(self, trainer):
        self.before = weights(trainer.module)


def weights(module: nn.Module) -> list[float]:
    """All of a module's weights."""
    return [v for p in module.parameters() for v in p.detach().flatten().tolist()]


def loader(size: int = SIZE) -> DataLoader:
    """22 samples: the last step of an epoch has fewer."""
    return DataLoader(
        torch.randn(COUNT, 100, generator=torch.Generator().manual_seed(1)), size, shuffle=True
    )


def start(folder: Path | str, **settings: Any) -> tuple[Trainer, Kept]:
    """A trainer that saves after every step."""
    kept = Kept()
    settings = {"accelerator": "cpu", "progress": False, "loggers": False, "precision": "64"} | settings
    more = {"run_dir": folder, "name": "n", "max_epochs": 2, "callbacks": [kept, Checkpoint(1, keep=None)]}
    return Trainer(**more, **settings), kept


def on_rank(folder: Path, size: int = SIZE, where: str = "", kind: str = "device", **settings: Any) -> Any:
    """One fit on one of two ranks, and what came of it."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    trainer, kept = start(folder, devices=2, strategy="ddp", **settings)
    module, error = Net(where, kind, rank=1), None
    try:
        trainer.fit(module, loader(size))
    except Exception as raised:
        error = [type(raised).__name__, *getattr(raised, "__notes__", [])]
    return {"error": error, "before": kept.before, "after": weights(module), "run": str(trainer.folder)}


if __name__ == "__main__":
    devices = int(sys.argv[1])
    trainer, _ = start("runs", devices=devices, strategy="ddp" if devices > 1 else "single")
    trainer.fit(Net("forward", rank=devices - 1), loader())
