"""The tiny model of the benchmarks: small enough that a step's cost is the loop's."""

from __future__ import annotations

import io
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from paceline import TrainModule
from paceline.callbacks import Callback

BATCH, WIDTH = 8, 16


def make_net() -> nn.Module:
    """The same weights each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))


def make_batches(count: int) -> list[Any]:
    """Ready batches."""
    return [(torch.randn(BATCH, WIDTH), torch.randint(2, (BATCH,))) for _ in range(count)]


class Plain(TrainModule):
    """One loss and SGD."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Logging(Plain):
    """Logs one value a step."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss_again", loss, prog_bar=True)
        return loss


class Stopwatch(Callback):
    """Times an epoch from its first step to its end, without the start and the end of the run."""

    def on_train_epoch_start(self, trainer):
        self.begun = time.perf_counter()

    def on_train_epoch_end(self, trainer):
        self.seconds = time.perf_counter() - self.begun


class Terminal(io.StringIO):
    """Makes a progress bar believe that it draws on a terminal."""

    def isatty(self) -> bool:
        return True
