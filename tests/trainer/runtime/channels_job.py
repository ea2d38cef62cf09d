"""A small convolution network with and without channels_last, on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deepspeed  # noqa: F401  (once, not on each rank)
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Checkpoint


class Net(TrainModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.volume = nn.Conv2d(3, 8, 3), nn.Conv3d(2, 2, 2)
        self.head = nn.Linear(8 + 2, 4)
        self.inputs: list[bool] = []
        self.losses: list[float] = []
        self.last = False

    def forward(self, x: Any, v: Any) -> Any:
        return self.head(torch.cat([self.first(x).mean((2, 3)), self.volume(v).mean((2, 3, 4))], 1))

    def training_step(self, batch: Any) -> Any:
        x, v, y = batch
        self.inputs = [
            x.is_contiguous(memory_format=torch.channels_last),
            v.is_contiguous(memory_format=torch.channels_last_3d) and not v.is_contiguous(),
        ]
        self.last = self.first.weight.is_contiguous(memory_format=torch.channels_last)
        loss = F.cross_entropy(self(x, v), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data() -> TensorDataset:
    draw = torch.Generator().manual_seed(1)
    x, v = torch.randn(24, 3, 6, 6, generator=draw), torch.randn(24, 2, 3, 3, 3, generator=draw)
    return TensorDataset(x, v, torch.arange(24) % 4)


def run(folder: Path, strategy: str, channels_last: bool) -> dict[str, Any]:
    module = Net()
    trainer = Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=2,
        channels_last=channels_last,
        max_epochs=2,
        callbacks=[Checkpoint()],
        progress=False,
        loggers=False,
        run_dir=folder,
        name="n",
    )
    done = trainer.fit(module, DataLoader(data(), 4))
    weights = trainer.strategy.weights.full_tensors(module)["first.weight"]
    again = Net.load_from_checkpoint(done.latest)
    return {
        "inputs": module.inputs,
        "weights": module.last,
        "losses": module.losses,
        "kept": weights.is_meta or weights.flatten().tolist(),
        "read": weights.is_meta or again.first.weight.flatten().tolist(),
    }


def both(folder: Path, strategy: str) -> dict[str, Any]:
    """Without and with it."""
    torch.set_num_threads(1)
    return {
        "plain": run(folder / "plain", strategy, False),
        "last": run(folder / "last", strategy, True),
    }
