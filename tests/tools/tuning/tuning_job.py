"""Modules and data for searches, and the searches on ranks.

python tuning_job.py FOLDER CASE...   (CASE: a strategy, or a function of this file)
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from paceline import Trainer, TrainModule, tools

X = torch.linspace(-2, 2, 24, dtype=torch.float64)[:, None]


class Quadratic(TrainModule):
    """f(w) = mean(x^2 w^2), so that a step with rate r multiplies w by 1 - 2 r mean(x^2)."""

    def __init__(self, size: int = 4):
        super().__init__()
        self.w = nn.Parameter(torch.full((size,), 3.0))

    def training_step(self, batch):
        return (batch[0] * self.w).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def loader(batch_size: int = 4, **options) -> DataLoader:
    return DataLoader(TensorDataset(X), batch_size=batch_size, **options)


def quiet(**settings) -> Trainer:
    usual = {"accelerator": "cpu", "precision": "64", "progress": False, "run_dir": None}
    return Trainer(**(usual | settings))


class Stream(IterableDataset):
    """Counts what it has given, and continues from there; at its end it begins again."""

    def __init__(self, length: int = 1000):
        self.given, self.length = 0, length

    def __iter__(self):
        while self.given < self.length:
            self.given += 1
            yield (X[self.given % len(X)],)
        self.given = 0

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


def generators() -> list:
    """The state of all generators of this process, as plain data."""
    return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]


class Planted(Quadratic):
    """Runs out of memory above so many samples at once."""

    def __init__(self, most: int, where: str = "forward", error: BaseException | None = None):
        super().__init__()
        self.most, self.where = most, where
        self.error = error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def training_step(self, batch):
        loss = super().training_step(batch)
        if len(batch[0]) > self.most:
            if self.where == "forward":
                self.fail()
            loss.register_hook(self.fail)
        return loss

    def fail(self, gradient=None):
        raise type(self.error)(*self.error.args)  # a new one: it holds the frames, and so the tensors


STEPS: list = []


class Counting(Quadratic):
    def training_step(self, batch):
        STEPS.append(self.trainer.global_step)
        return super().training_step(batch)


# -- on ranks ------------------------------------------------------------------------------------


def find_learning_rate(strategy: str, folder: Path) -> tuple[Trainer, dict]:
    torch.manual_seed(7)
    STEPS.clear()
    trainer = quiet(strategy=strategy, devices=2, run_dir=folder / "runs", global_batch_size=8)
    module = Counting()
    before, drawn = [w.tolist() for w in module.parameters()], generators()
    search = tools.find_learning_rate(
        trainer, module, loader(shuffle=True), lowest=0.01, highest=40.0, steps=40
    )
    return trainer, {
        "steps": len(STEPS),
        "found": [search.rates, search.losses, search.smoothed, search.suggestion, search.diverged_at],
        "untouched": before == [w.tolist() for w in module.parameters()] and drawn == generators(),
    }


def find_batch_size(folder: Path) -> tuple[Trainer, dict]:
    trainer = quiet(strategy="ddp", devices=2, run_dir=folder / "runs")
    module = Planted(most=9 if trainer.rank else 14)
    search = tools.find_batch_size(trainer, module, loader(3))
    fits = [(trial.batch_size, trial.fits) for trial in search.tried]
    return trainer, {"fits": fits, "suggestion": search.suggestion}


def find_micro_batch(folder: Path) -> tuple[Trainer, dict]:
    """Of 12 samples a rank; rank 1 has memory for 4 of them, rank 0 for 7."""
    trainer = quiet(strategy="ddp", devices=2, run_dir=folder / "runs", batch_size="auto", max_steps=2)
    module = Planted(most=4 if trainer.rank else 7)
    trainer.fit(module, loader(12))
    log = (trainer.folder / "log.txt").read_text() if trainer.is_global_zero else ""
    return trainer, {"micro_batch": trainer._fit.state.micro_batch, "log": log}


CASES = {"batch": find_batch_size, "micro-batch": find_micro_batch}


if __name__ == "__main__":
    torch.set_num_threads(1)
    here = Path(sys.argv[1])
    for case in sys.argv[2:]:
        trainer, about = CASES[case](here) if case in CASES else find_learning_rate(case, here)
        (here / f"{case}-{trainer.rank}.json").write_text(json.dumps(about))
