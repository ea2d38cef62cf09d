"""Resumes elsewhere: on other ranks, under another strategy, with other batches, from damaged files.

python layouts_job.py FOLDER DEVICES CASES   (CASES: JSON, a list of [function, {arguments}])

Each rank notes what it came to see in FOLDER/<name>-<rank>.json.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics import MeanMetric

from paceline import PacelineError, Run, Trainer, TrainModule
from paceline.callbacks import Checkpoint, JSONLogger

SAMPLES, BATCH, EPOCHS = 22, 4, 2
EVERY, AT = 2, 4  # steps; an epoch has six
DTYPE = torch.float64


class Net(TrainModule):
    """No draws inside: what it computes depends on the samples alone."""

    def __init__(self, width: int = 6):
        super().__init__()
        self.first, self.last = nn.Linear(1, width, dtype=DTYPE), nn.Linear(width, 1, dtype=DTYPE)
        self.mean = MeanMetric()
        self.seen: list[list[Any]] = []
        self.before: Callable[[], None] = lambda: None

    def prepare_data(self):
        self.before()  # on rank 0, before anything is looked for

    def training_step(self, batch):
        if not self.trainer._run.logger.is_evaluating:  # not what only serves to compute with
            self.seen.append([self.global_step + 1, batch[0].flatten().int().tolist()])
        self.mean.update(batch[0])
        self.log("mean", self.mean)
        return self.last(torch.tanh(self.first(batch[0] / 10))).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


def data(samples: int = SAMPLES) -> TensorDataset:
    return TensorDataset(torch.arange(samples, dtype=DTYPE)[:, None])


def note(folder: Path, name: str, rank: int, **values: Any) -> None:
    (folder / f"{name}-{rank}.json").write_text(json.dumps(values))


def train(
    folder: Path,
    devices: int,
    name: str,
    batch: int | None = None,
    resume: str | None = None,
    by_path: bool = False,
    damage: str | None = None,
    width: int = 6,
    **settings: Any,
) -> None:
    """One fit in FOLDER/<name>; an error is noted, and not raised.

    Args:
        resume: The name of the run to resume from; its folder is copied, as it was after ``AT`` steps.
        by_path: From the path of the newest checkpoint there; else from the latest.
        damage: A file of the newest checkpoint there, of which a byte is flipped.
    """
    torch.manual_seed(3)
    module = Net(width)
    callbacks = [JSONLogger(), Checkpoint(EVERY, keep=None)]
    usual = {
        "accelerator": "cpu",
        "devices": devices,
        "precision": "64",
        "max_epochs": EPOCHS,
        "log_every": 1,
    }
    usual |= {"progress": False, "loggers": False, "run_dir": folder, "callbacks": callbacks, "name": name}
    trainer = Trainer(**(usual | settings))
    source: Any = None
    if resume is not None:
        module.before = partial(copy, folder, resume, name, damage)
        source = folder / name / "1/checkpoints" / f"step-{AT:08d}" if by_path else "latest"
    loader = DataLoader(data(), batch or BATCH // devices, shuffle=True)
    error = None
    try:
        trainer.fit(module, loader, resume=source)
    except PacelineError as raised:
        error = str(raised)
    rows = Run(folder / name / "1").rows if (folder / name / "1/metrics.jsonl").exists() else []
    losses = [[row["step"], row["train/loss"]] for row in rows if "train/loss" in row]
    note(
        folder, name, trainer.rank, seen=module.seen, losses=losses, error=error, steps=trainer.global_step
    )


def copy(folder: Path, source: str, name: str, damage: str | None) -> None:
    shutil.copytree(folder / source, folder / name)
    checkpoints = sorted((folder / name / "1/checkpoints").glob("step-*"))
    for later in checkpoints[AT // EVERY :]:
        shutil.rmtree(later)
    if damage is not None:
        path = checkpoints[AT // EVERY - 1] / damage
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)


class Nothing(IterableDataset):
    def __iter__(self):
        return iter(())


EMPTY = {
    "no-sample": lambda: DataLoader(data(0), 4),
    "all-dropped": lambda: DataLoader(data(3), 4, drop_last=True),
    "empty-list": list,
    "empty-stream": lambda: DataLoader(Nothing(), 4),
}


def empty(folder: Path, devices: int, name: str) -> None:
    """A loader without a batch."""
    module = Net()
    before = [p.detach().clone() for p in module.parameters()]
    trainer = Trainer(
        accelerator="cpu", devices=devices, precision="64", progress=False, run_dir=folder, name=name
    )
    error = None
    try:
        trainer.fit(module, EMPTY[name]())
    except PacelineError as raised:
        error = str(raised)
    same = devices > 1 or all(map(torch.equal, before, module.parameters()))
    note(folder, name, trainer.rank, seen=module.seen, error=error, steps=trainer.global_step, same=same)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for function, arguments in json.loads(sys.argv[3]):
        globals()[function](Path(sys.argv[1]), int(sys.argv[2]), **arguments)
