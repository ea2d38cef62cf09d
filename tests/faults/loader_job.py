"""Trains on data that cannot all be read, on one device or on two ranks."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from helpers.loader_workers import wait_until_sent
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from paceline import Trainer, TrainModule, seed_everything
from paceline.callbacks import Checkpoint

COUNT, SIZE, BAD = 24, 4, 13
SECONDS = 120

# Seconds until workers are looked at: torch's own 5 make long tests.
_MultiProcessingDataLoaderIter._try_get_data.__defaults__ = (0.3,)


class Faulty(Dataset):
    """Numbers with noise of their own, some of which cannot be read.

    Args:
        how: ``"raise"``, ``"kill"`` or ``"exit"``: what reading one of them does.
        times: How often each of them does; None: always.
        tries: Files of this name and the sample's number count it.
        after: A file that is waited for before that, if any.
    """

    def __init__(
        self,
        bad: Any = (),
        how: str = "raise",
        times: int | None = None,
        tries: str = "",
        count: int = COUNT,
        after: Path | None = None,
    ) -> None:
        self.bad, self.how, self.times, self.tries, self.count = set(bad), how, times, tries, count
        self.after = after

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        sample = index, torch.randn(3, dtype=torch.float64) + index / 10
        if index in self.bad:
            self.fail(index)
        return sample

    def fail(self, index: int) -> None:
        if self.tries:
            tries = f"{self.tries}-{index}"
            with open(tries, "a") as file:
                file.write("x")
            if self.times is not None and os.path.getsize(tries) > self.times:
                return
        while self.after is not None and not self.after.exists():
            time.sleep(0.005)
        if self.how == "raise":
            raise ValueError(f"number {index} is broken")
        # Ended before, nobody sends any more, and an earlier batch than this one is what fails.
        wait_until_sent()
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(7)


class ByBatch(Faulty):
    """Reads a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Stream(IterableDataset):
    """The same numbers, one after the other."""

    def __init__(self, data: Faulty) -> None:
        self.data = data

    def __iter__(self) -> Any:
        for index in range(len(self.data)):
            yield self.data[index]


class Net(TrainModule):
    """Notes each micro-batch in ``seen``: the step, its samples and their numbers.

    Args:
        waits: Called at the end of each training_step.
    """

    def __init__(self, waits: Any = None) -> None:
        super().__init__()
        self.line, self.waits = nn.Linear(3, 1).double(), waits
        self.seen: list[Any] = []
        self.evaluated: list[Any] = []

    def training_step(self, batch):
        self.seen.append([self.global_step + 1, batch[0].tolist(), batch[1].tolist()])
        if self.waits is not None:
            self.waits(self)
        return self.loss(batch[1])

    def loss(self, values):
        return (self.line(values) - values.sum(1, keepdim=True)).square().mean()

    def validation_step(self, batch):
        self.evaluated.append([batch[0].tolist(), batch[1].tolist()])
        self.log("loss", self.loss(batch[1]))

    def predict_step(self, batch):
        return batch[0]

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)


def loader(data: Any, workers: int = 0, **more: Any) -> DataLoader:
    """A DataLoader; no worker is more than a batch ahead."""
    ahead = {"prefetch_factor": 1} if workers else {}
    return DataLoader(data, num_workers=workers, **{"batch_size": SIZE, "shuffle": True} | ahead | more)


def start(folder: Path, saves: bool = False, **settings: Any) -> tuple[Net, Trainer]:
    """A module that begins as every other, and a trainer in double precision."""
    seed_everything(3)
    settings |= {"callbacks": [Checkpoint(1)]} if saves else {"checkpoint": False}
    common = {"accelerator": "cpu", "progress": False, "loggers": False, "precision": "64", "name": "n"}
    settings = common | {"run_dir": folder, "max_epochs": 2} | settings
    return Net(), Trainer(**settings)


def weights(module: Net) -> list[float]:
    """All of a module's weights."""
    return [value for p in module.parameters() for value in p.detach().flatten().tolist()]


def train(
    folder: Path, data: dict[str, Any], by_batch: bool = False, loads: Any = None, **settings: Any
) -> dict[str, Any]:
    """One fit, and what came of it.

    Args:
        loads: Further arguments of ``loader``.
    """
    module, trainer = start(folder, **settings)
    trainer.fit(module, loader((ByBatch if by_batch else Faulty)(**data), **loads or {}))
    return {"seen": module.seen, "weights": weights(module), "counts": trainer._fit.feed.state_dict()}


def on_rank(folder: Path, **case: Any) -> dict[str, Any]:
    """``train`` on one of two ranks."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(SECONDS, exit=True)  # begins again with each case
    return train(folder, strategy="ddp", devices=2, **case)
