"""Odd data on a given number of ranks: python data_corners_job.py DEVICES FOLDER CASE...

Each rank writes the samples it computed with, and what came out, to <case>-<rank>.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics import MeanMetric

from paceline import Trainer, TrainModule

DEVICES, FOLDER = int(sys.argv[1]), Path(sys.argv[2])
RANK = int(os.environ.get("RANK", "0"))


class Stream(IterableDataset):
    def __init__(self, size: int = 32) -> None:
        self.size = size

    def __iter__(self):
        yield from map(torch.tensor, range(self.size))


class OwnStrings(IterableDataset):
    """No tensor in it; each rank reads its own, and rank 0 has more."""

    def __iter__(self):
        yield from (str(100 * RANK + i) for i in range(18 if RANK == 0 else 9))


class Model(TrainModule):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(1, 1, dtype=torch.float64)
        self.mean = MeanMetric()
        self.seen: list[int] = []

    def ids(self, batch):
        return torch.tensor(list(map(int, batch["id"]))) if isinstance(batch, dict) else batch

    def training_step(self, batch):
        ids = self.ids(batch)
        if not self.trainer._run.logger.is_evaluating:  # not what only serves to compute with
            self.seen += ids.tolist()
        return self.line(ids.double()[:, None] / 100).square().mean()

    def validation_step(self, batch):
        self.mean.update(batch.double())
        self.log("mean", self.mean)
        return {"plain": batch.double().mean()}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def strings(rows):
    return {"id": rows, "none": None}


def small(rows):
    return torch.stack(list(map(torch.as_tensor, rows)))


CASES = {
    "one-validation-batch": lambda: (DataLoader(Stream(), batch_size=4), [torch.arange(4.0)]),
    "mixed-validation": lambda: (
        DataLoader(Stream(), batch_size=4, num_workers=1, persistent_workers=True),
        {
            "stream": DataLoader(Stream(10), batch_size=4),
            "map": DataLoader(list(range(9)), batch_size=4, collate_fn=small),
            "list": [torch.arange(3.0)],
        },
    ),
    "own-strings": lambda: (DataLoader(OwnStrings(), batch_size=4, collate_fn=strings), None),
    "fewer-than-ranks": lambda: (DataLoader(Stream(3), batch_size=4), None),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[3:]:
        trainer = Trainer(
            accelerator="cpu",
            devices=DEVICES,
            precision="64",
            progress=False,
            loggers=False,
            run_dir=FOLDER,
            max_epochs=1,
        )
        module = Model()
        trainer.fit(module, *CASES[case]())
        found = {"seen": module.seen, "metrics": trainer.metrics, "samples": trainer.counters.samples}
        (FOLDER / f"{case}-{trainer.rank}.json").write_text(json.dumps(found))
