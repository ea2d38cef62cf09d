"""One module under one strategy, then under another, in one process: ``python mixed_job.py``, one rank."""

from __future__ import annotations

import sys

import torch
from helpers.trainers import quiet
from torch import nn

from paceline import PacelineError, TrainModule


class Line(TrainModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def training_step(self, batch):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(strategy: str, module: Line) -> str:
    trainer = quiet(strategy=strategy, devices=1)
    try:
        trainer.fit(module, [torch.ones(4, 2)] * 2)
    except PacelineError as error:
        return str(error).splitlines()[0]
    return "trained"


if __name__ == "__main__":
    module = Line()
    for strategy in sys.argv[1].split(","):
        print("result:", fit(strategy, module))
