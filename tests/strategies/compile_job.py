"""Trains a small model with and without torch.compile on each of two ranks ."""

from __future__ import annotations

import faulthandler
from pathlib import Path
from typing import Any

import deepspeed  # noqa: F401  (with the next: once, not on each rank)
import torch
import torch._inductor.compile_fx
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import Run, Trainer, TrainModule
from paceline.callbacks import Checkpoint

SECONDS = 90


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x: Any) -> Any:
        return x + self.last(torch.tanh(self.first(x)))


class Net(TrainModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        self.log("size", x.detach().square().mean())
        return self.head(x)

    def training_step(self, batch: Any) -> Any:
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: Any) -> None:
        self.log("loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def train(folder: Path, strategy: str, setting: Any) -> dict[str, Any]:
    """What a run logged, and how often it said that something was compiled."""
    draw = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(44, 6, generator=draw), torch.arange(44) % 3)
    trainer = Trainer(
        strategy=strategy, accelerator="cpu", devices=2, progress=False, max_epochs=2,
        loggers=["-tensorboard", "-curves"],
        accumulate=2, log_every=1, compile=setting, run_dir=folder, name="n", callbacks=[Checkpoint()],
    )  # fmt: skip
    run = trainer.fit(Net(), DataLoader(data, 4, shuffle=True), DataLoader(data, 8))
    rows = [
        {k: v for k, v in row.items() if not k.startswith(("perf/", "time"))}
        for row in Run(run.folder).rows
    ]
    said = (run.folder / "log.txt").read_text().count(": compiled ") if trainer.rank == 0 else 0
    return {"rows": rows, "said": said, "run": str(run.folder)}


def runs(folder: Path, strategy: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The run without torch.compile, and with each of these settings."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    found = {"plain": train(folder / "plain", strategy, False)}
    for name, setting in settings.items():
        torch.compiler.reset()  # what the run before has compiled
        found[name] = train(folder / name, strategy, setting)
    faulthandler.cancel_dump_traceback_later()
    return found
