"""Predicts under each strategy, in memory and into files, and logs what only some ranks have.

python predictions_job.py DEVICES FOLDER STRATEGY...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from paceline import PacelineError, Predictions, Trainer, TrainModule
from paceline.trainer.loops import predictions as writing

DEVICES, FOLDER = int(sys.argv[1]), Path(sys.argv[2])
SAMPLES = 103


class Model(TrainModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        self.mean = MeanMetric()

    def predict_step(self, batch):
        return {"id": batch[1], "logits": self.net(batch[0]), "name": [f"n{i}" for i in batch[1].tolist()]}

    def validation_step(self, batch):
        self.mean.update(batch[0])
        if self.trainer.rank != 1:
            self.log("partly", self.mean)


def loader(samples: int = SAMPLES) -> DataLoader:
    x = torch.randn(samples, 3, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(x, torch.arange(samples)), batch_size=4)


def plain(outputs) -> list:
    return [[o["id"].tolist(), o["name"], o["logits"].tolist()] for o in outputs]


def main() -> None:
    for name in sys.argv[3:]:
        torch.manual_seed(1)
        module = Model()
        trainer = Trainer(strategy=name, accelerator="cpu", devices=DEVICES, progress=False)
        written = trainer.predict(module, loader(), out=FOLDER / f"{name}-out")
        found = {
            "gathered": plain(trainer.predict(module, loader())),
            "written": plain(written),
            "read": plain(Predictions(FOLDER / f"{name}-out")),
            "one": plain(trainer.predict(module, loader(1), out=FOLDER / f"{name}-one")),
            "only_zero": len(trainer.predict(module, loader(), only_rank_zero=True)),
        }
        for what, call in {
            "over": lambda t=trainer, m=module, n=name: t.predict(m, loader(), out=FOLDER / f"{n}-out"),
            "partly": lambda t=trainer, m=module: t.validate(m, loader()),
        }.items():
            try:
                call()
                found[what] = ""
            except PacelineError as error:
                found[what] = str(error)
        (FOLDER / f"{name}-{trainer.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    writing._PART_BYTES = 500
    writing._ROUND = 3
    main()
