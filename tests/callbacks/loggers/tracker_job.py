"""Trains with all trackers at once, and with loader workers that are forked meanwhile.

python tracker_job.py '{"folder": FOLDER, "trackers": FOLDER, "act": "kill" | "terminate" | ""}'

``kill`` ends the process at step 7, ``terminate`` sends SIGTERM at step 10; a checkpoint is at each 4th.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from helpers.trackers import KINDS, isolate, make
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint

HELD = 1.8  # seconds; the trackers hold what they are sent for one, at most


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(2, 1)

    def training_step(self, batch):
        return (self.net(batch[0]) - batch[1]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Acts(Callback):
    def __init__(self, act):
        self.act = act

    def on_step_boundary(self, trainer):
        if self.act == "kill" and trainer.global_step == 7:
            deadline = time.monotonic() + 240
            while not all(sent(trainer.folder / f"{kind}.json") for kind in KINDS):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(HELD)
            os.kill(os.getpid(), signal.SIGKILL)
        if self.act == "terminate" and trainer.global_step == 10:
            os.kill(os.getpid(), signal.SIGTERM)


def sent(path: Path) -> bool:
    return path.exists() and json.loads(path.read_text())["step"] == 7


def data(workers: int = 0) -> DataLoader:
    x = torch.linspace(-1, 1, 32).reshape(16, 2)
    context = "fork" if workers else None
    rows = TensorDataset(x, x.sum(1, keepdim=True))
    return DataLoader(rows, 4, num_workers=workers, multiprocessing_context=context)


def train(folder: Path, act: str = "", kinds: tuple[str, ...] = KINDS) -> None:
    trainer = Trainer(
        run_dir=folder,
        name="job",
        accelerator="cpu",
        progress=False,
        log_every=1,
        max_epochs=4,
        loggers=[*map(make, kinds), "-tensorboard", "-curves"],
        callbacks=[Acts(act), Checkpoint(every=4)],
    )
    trainer.fit(Net(), data(2), resume="auto")


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    isolate(Path(options["trackers"]))
    train(Path(options["folder"]), options["act"])
