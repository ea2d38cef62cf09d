"""Trains under stage 3 with the optimizer's state on "NVMe": at once, and resumed in the middle.

nvme_job.py FOLDER
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.strategies import DeepSpeed

STEPS = 6


class Wide(TrainModule):
    """Parts of less than a MiB stay in memory: a matrix of 1024 x 1024 has 2 MiB on each of two ranks."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(1024, 1024), nn.Linear(1024, 2)

    def training_step(self, batch):
        return F.cross_entropy(self.last(torch.tanh(self.first(batch[0]))), batch[1])

    def on_step_end(self, trainer):
        """Halves the weights after step 2: what is written goes into the masters on the drive."""
        if trainer.global_step == 2:
            with gathered(list(self.parameters())), torch.no_grad():
                for parameter in self.parameters():
                    parameter.mul_(0.5)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01, eps=1e-3)


def gathered(parameters):
    """Whole parameters inside, which may be written on rank 0."""
    if not hasattr(parameters[0], "ds_id"):
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(parameters, modifier_rank=0)


def train(folder: Path, name: str, strategy, devices: int, stops: tuple[int, ...]) -> None:
    """Train to each of the steps, resuming from the one before, and export the weights as ``name``."""
    draw = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(16, 1024, generator=draw), torch.arange(16) % 2)
    latest = None
    for stop in stops:
        trainer = Trainer(
            strategy=strategy(),
            accelerator="cpu",
            devices=devices,
            global_batch_size=8,
            max_steps=stop,
            progress=False,
            loggers=False,
            run_dir=folder / "runs",
        )
        trainer.fit(Wide(), DataLoader(data, batch_size=8 // devices), resume=latest)
        latest = trainer.run.latest
    trainer.export(folder / name)


def on_nvme(folder: Path) -> DeepSpeed:
    place = {"device": "nvme", "nvme_path": str(folder / "nvme")}
    return DeepSpeed(3, {"zero_optimization": {"offload_optimizer": place}})


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    train(place, "at-once", lambda: on_nvme(place), 2, (STEPS,))
    train(place, "resumed", lambda: on_nvme(place), 2, (STEPS // 2, STEPS))
