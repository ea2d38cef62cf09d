"""Kills runs between two of their steps, at each step, and resumes each.

python killed_job.py FOLDER DEVICES

What came of it goes to FOLDER/kills.json. Each run is a fork, as in crash_job.py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from crash_job import Bench, digest, look, trainer_for, warm_up
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import TrainModule
from paceline.callbacks import Callback, Checkpoint, JSONLogger
from paceline.callbacks.loggers.series import read_rows

SAMPLES, BATCH, EPOCHS = 14, 4, 3
STEPS = 4 * EPOCHS  # the last of an epoch has two samples
EVERY = 2
TIMED = ("time", "perf/samples_per_second")


class Net(TrainModule):
    """Draws in dropout; each step's samples are noted before anything is done with them."""

    def __init__(self, place: Path):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(1, 6), nn.Dropout(0.3), nn.Linear(6, 1)
        self.place = place

    def training_step(self, batch):
        path = self.place / f"order-{self.trainer.rank}.jsonl"
        with path.open("a") as file:
            file.write(json.dumps([self.global_step + 1, batch[0].flatten().int().tolist()]) + "\n")
        self.log("drawn", torch.rand(()))
        return self.last(self.drop(self.first(batch[0] / 10))).square().mean()

    def validation_step(self, batch):
        return self.last(self.first(batch[0])).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


class Kill(Callback):
    """SIGKILL before the step after ``at``; 0 for none, since all ranks have the same callbacks."""

    def __init__(self, at: int):
        self.at = at

    def on_step_start(self, trainer, batches):
        if self.at and trainer.global_step == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


class Kills(Bench):
    def train(self, place: Path, rank: int, resume: str | None, at: int, when: str) -> None:
        if resume and rank == 0:
            (place / "before.json").write_text(json.dumps(look(place / "n/1", whole=False)))
        ranks = {"devices": 2, "strategy": "ddp"} if self.devices > 1 else {}
        callbacks, checkpoint = [JSONLogger(), Kill(at)], Checkpoint(EVERY, keep=2)
        torch.manual_seed(3)
        trainer = trainer_for(place, checkpoint, *callbacks, max_epochs=EPOCHS, log_every=1, **ranks)
        samples = DataLoader(
            TensorDataset(torch.arange(1.0 * SAMPLES)[:, None]), BATCH // self.devices, shuffle=True
        )
        values = DataLoader(TensorDataset(torch.ones(3, 1)), 2)
        module = Net(place)
        trainer.fit(module, samples, values, resume=resume)
        if rank == 0:
            found = look(trainer.folder) | {
                "run": trainer.folder.name,
                "weights": digest(module.state_dict()),
            }
            (place / "end.json").write_text(json.dumps(found))

    def result(self, name: str) -> dict[str, Any]:
        place = self.folder / name
        rows = read_rows(place / "n/1/metrics.jsonl")
        found = super().result(name)
        found["rows"] = [{k: v for k, v in row.items() if k not in TIMED} for row in rows]
        lines = [(place / f"order-{rank}.jsonl").read_text().splitlines() for rank in range(self.devices)]
        found["order"] = [list(map(json.loads, of_rank)) for of_rank in lines]
        return found


def cases(devices: int) -> list[tuple[int, int]]:
    """(rank, step) of each kill."""
    if devices == 1:
        return [(0, step) for step in range(1, STEPS)]
    return [(0, 3), (1, 8), (1, 9)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, devices = Path(sys.argv[1]), int(sys.argv[2])
    warm_up(folder / "warm", devices)
    bench = Kills(folder, devices, True)
    found: dict[str, Any] = {"codes": bench.fit("whole"), "cases": []}
    found["whole"] = bench.result("whole")
    for rank, step in cases(devices):
        name = f"rank-{rank}-{step}"
        about = {"rank": rank, "step": step, "codes": bench.fit(name, kill=(rank, step, ""))}
        about["resumed"] = bench.fit(name, resume="auto")
        found["cases"].append(about | bench.result(name))
    (folder / "kills.json").write_text(json.dumps(found))
