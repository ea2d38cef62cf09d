"""Trains on two ranks under each strategy while monitors watch. python monitors_job.py FOLDER STRATEGY...

Steps have 4 samples, the last one of an epoch 1: one rank has none.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import torch
from helpers.planted_clock import Block
from torch.utils.data import DataLoader

from paceline import Trainer, TrainModule
from paceline.callbacks import DeviceMonitor, Profiler, Throughput, Timer

SAMPLES, EPOCHS, STEPS = 21, 2, 12


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = Block()

    def training_step(self, batch):
        return self.net(batch["x"]).square().mean()

    def validation_step(self, batch):
        self.log("loss", self.net(batch["x"]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def data() -> DataLoader:
    return DataLoader([{"x": row} for row in torch.ones(SAMPLES, 3)], 2)


def observe(strategy: str, folder: Path) -> dict:
    speed, timer = Throughput(STEPS, tokens="x", peak_flops=1e9), Timer()
    callbacks = [speed, timer, DeviceMonitor(STEPS), Profiler(wait=3, warmup=1, active=2)]
    usual = {"accelerator": "cpu", "devices": 2, "progress": False, "loggers": False, "checkpoint": False}
    trainer = Trainer(strategy=strategy, max_epochs=EPOCHS, callbacks=callbacks, run_dir=folder, **usual)
    trainer.fit(Net(), data(), data())
    return {
        "folder": str(trainer.folder),
        "metrics": trainer.metrics,
        "flops": speed.state_dict(),
        "timer": {phase: timer.seconds(phase) for phase in ("train", "data", "validation")},
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    for name in sys.argv[2:]:
        found = observe(name, root / "runs" / name)
        (root / f"{name}-{torch.distributed.get_rank()}.json").write_text(json.dumps(found))
        gc.freeze()  # DeepSpeed collects garbage often
