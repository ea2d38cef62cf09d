"""Trains some steps, and resumes with other optimizer settings.

python settings_job.py FOLDER STRATEGY...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint
from paceline.schedules import Cosine

STEPS = 12
SCHEDULES = {
    "none": lambda o: None,
    "lambda": lambda o: schedulers.LambdaLR(o, lambda step: min(1.0, (step + 1) / 4) * 0.9**step),
    "step": lambda o: schedulers.StepLR(o, 3, 0.5),
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, STEPS),
    "cosine to a floor": lambda o: schedulers.CosineAnnealingLR(o, STEPS, eta_min=0.001),
    "one cycle": lambda o: schedulers.OneCycleLR(o, o.param_groups[0]["lr"], total_steps=STEPS + 1),
    "ours": lambda o: Cosine(warmup=3, end=0.1),
    "sequential": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, 1.0, 3), schedulers.ExponentialLR(o, 0.8)], [3]
    ),
}


class Net(TrainModule):
    def __init__(self, schedule: str = "none", **settings: Any):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.head = nn.Linear(3, 4), nn.Linear(4, 1)
        self.schedule, self.settings = schedule, {"lr": 0.1, "momentum": 0.9} | settings
        self.rates: list[float] = []

    def training_step(self, batch):
        return self.head(self.net(batch[0])).square().mean()

    def on_before_optimizer_step(self, trainer, optimizer):
        self.rates.append(float(optimizer.param_groups[0]["lr"]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), **self.settings)
        scheduler = SCHEDULES[self.schedule](optimizer)
        if scheduler is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class StopAfter(Callback):
    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, trainer):
        if trainer.global_step == self.step:
            trainer.stop("enough")


def fit(folder: Path, module: TrainModule, stop: int | None = None, **options: Any) -> Trainer:
    arguments = {k: options.pop(k) for k in ("strategy", "devices") if k in options}
    callbacks = [Checkpoint(STEPS), *([StopAfter(stop)] if stop else [])]  # saves where it stops too
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "max_steps": STEPS, "name": "n"}
    trainer = Trainer(run_dir=folder, callbacks=callbacks, **usual, **arguments)
    x = torch.linspace(-1, 1, 96).reshape(32, 3)
    trainer.fit(module, DataLoader(TensorDataset(x), 4), **options)
    return trainer


def settings_of(trainer: Trainer) -> dict[str, Any]:
    group = trainer.optimizers[0].param_groups[0]
    return {key: group[key] for key in ("momentum", "weight_decay")}


if __name__ == "__main__":
    for strategy in sys.argv[2:]:
        folder = Path(sys.argv[1], strategy)
        ranks = {"strategy": strategy, "devices": 2}
        print(f"strategy: {strategy}")
        fit(folder, Net("step"), 4, **ranks)
        found = {}
        for allow in ("", "optimizer"):
            module = Net("step", lr=0.02, weight_decay=0.01)
            source = folder / "n/1/checkpoints/step-00000004"
            options = {"allow": allow} if allow else {}
            trainer = fit(folder, module, 8, resume=source, **options, **ranks)
            found[allow] = {"rates": module.rates, "settings": settings_of(trainer)}
        (folder / f"found-{trainer.rank}.json").write_text(json.dumps(found))
