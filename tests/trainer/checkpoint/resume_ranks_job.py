"""Trains, stops and resumes on a given number of ranks; each case begins where its name says.

python resume_ranks_job.py DEVICES FOLDER CASES   (CASES: JSON, a list of {name, strategy, settings ...})
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint, EarlyStopping

DEVICES = int(sys.argv[1])
FOLDER = Path(sys.argv[2])
GLOBAL, SAMPLES = 8, 61


class Block(nn.Module):
    def __init__(self, dropout: float):
        super().__init__()
        self.inner, self.drop = nn.Linear(6, 6), nn.Dropout(dropout)

    def forward(self, x):
        return x + self.drop(torch.tanh(self.inner(x)))


class Centred(nn.Module):
    """Takes off a running mean of what this rank has seen: what batch norm does, of one sample too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(6))

    def forward(self, x):
        if self.training:
            self.running_mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.running_mean


class Noisy(TrainModule):
    def __init__(self, dropout: float = 0.3, batch_norm: bool = False, centred: bool = False):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = Centred() if centred else nn.BatchNorm1d(6) if batch_norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(2))
        self.last = nn.Linear(6, 3)
        self.accuracy = MulticlassAccuracy(3)
        self.masks: list[list[float]] = []

    def logits(self, x):
        x = self.norm(self.first(x))
        for block in self.blocks:
            x = block(x)
        return self.last(x)

    def training_step(self, batch):
        x, y = batch
        self.masks.append(F.dropout(torch.ones(16), 0.5).tolist())
        logits = self.logits(x)
        self.accuracy.update(logits, y)
        self.log("accuracy", self.accuracy)
        wide = logits.detach().double()  # sums of floats are exact in double precision, these are not
        self.log("norm", wide.norm())
        self.log("weighted", wide.abs().max() / 3, weight=wide[0, 0].abs())
        self.log("summed", wide.sum() / 3, reduce="sum")
        return F.cross_entropy(logits, y)

    def validation_step(self, batch):
        return F.cross_entropy(self.logits(batch[0]), batch[1])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02, eps=1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Accumulating(Noisy):
    """Updates in every other step: a checkpoint in between has gradients."""

    automatic_optimization = False

    def training_step(self, batch):
        self.manual_backward(F.cross_entropy(self.logits(batch[0]), batch[1]) / 2)
        if self.global_step % 2:
            self.optimizers().step()
            self.optimizers().zero_grad()


class SaveAt(Callback):
    def __init__(self, step: int):
        self.step = step

    def on_step_boundary(self, trainer):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(FOLDER / f"{trainer.name}-at-{self.step}")


class StopAt(SaveAt):
    def on_step_end(self, trainer):
        if trainer.global_step == self.step:
            trainer.stop("far enough")

    def on_step_boundary(self, trainer):
        pass


def data(samples: int, dtype: torch.dtype, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 4, generator=generator, dtype=torch.float64).to(dtype)
    return TensorDataset(x, x[:, :3].argmax(1))


def run(case: dict) -> None:
    case = dict(case)
    name, dtype = case["name"], torch.float64 if case.get("precision") == "64" else torch.float32
    resume, fits, finish = case.pop("resume", None), case.pop("fits", 1), case.pop("finish", False)
    folder = case.pop("folder", "")
    # The worst is taken for the best: the best one is the last, which is there anyway.
    callbacks: list[Callback] = [Checkpoint(monitor="val/loss", mode="max", keep=None)]
    for kind, key in ((SaveAt, "save_at"), (StopAt, "stop_at")):
        if key in case:
            callbacks.append(kind(case.pop(key)))
    if "patience" in case:
        callbacks.append(EarlyStopping("train/loss_epoch", mode="max", patience=case.pop("patience")))
    torch.manual_seed(3)
    module = (Accumulating if case.pop("accumulates", False) else Noisy)(**case.pop("model", {}))
    usual = {
        "accelerator": "cpu",
        "devices": DEVICES,
        "max_epochs": 3,
        "log_every": 6,
        "clip_grad_norm": 0.5,
        "progress": False,
        "loggers": ["-tensorboard", "-curves"],
        "run_dir": FOLDER / folder,
        "callbacks": callbacks,
    }
    trainer = Trainer(**(usual | case))
    train, val = data(SAMPLES, dtype, 1), data(13, dtype, 2)
    loaders = DataLoader(train, GLOBAL // DEVICES, shuffle=True), DataLoader(val, 3)
    if resume not in (None, "latest", "auto"):
        resume = FOLDER / resume
    for _ in range(fits):
        trainer.fit(module, *loaders, resume=resume)
    found = {"steps": trainer.global_step, "reason": trainer.stop_reason, "masks": module.masks}
    found["metrics"] = {k: v for k, v in trainer.metrics.items() if not k.startswith("perf/")}
    if finish:
        trainer.export(FOLDER / f"{name}-export")
        found["validated"] = trainer.validate(module, loaders[1])
        found["best"] = trainer.validate(module, loaders[1], weights="best")
        trainer.export(FOLDER / f"{name}-export-best")
    (FOLDER / f"{name}-{DEVICES}-{trainer.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in json.loads(sys.argv[3]):
        run(case)
