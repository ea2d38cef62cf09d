"""A job of ``parity_between.py``, with the public names only: python parity_job.py NAME [ARGUMENT=VALUE]...

Its arguments are those of ``Trainer``. What it uses must exist in both of the commits that are compared.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from paceline import Trainer, TrainModule, seed_everything
from paceline.callbacks import Checkpoint


class Images(Dataset):
    """96 images of three classes; half of them are flipped at random."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.arange(96) % 3
        self.images = torch.randn(96, 1, 8, 8, generator=generator) + self.labels.view(-1, 1, 1, 1) / 2

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index]
        return (image.flip(-1) if torch.rand(()) < 0.5 else image), self.labels[index]


class Net(TrainModule):
    """A convolution, dropout, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.GELU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(288, 3)
        )

    def training_step(self, batch: Any) -> torch.Tensor:
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("twice", 2 * loss.detach())
        return loss

    def validation_step(self, batch: Any) -> None:
        logits = self.net(batch[0])
        self.log("loss", F.cross_entropy(logits, batch[1]))
        self.log("accuracy", (logits.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)]


def main() -> None:
    """Train for two epochs."""
    name, *words = sys.argv[1:]
    given = {
        key: int(value) if value.isdigit() else value for key, _, value in (w.partition("=") for w in words)
    }
    seed_everything(0)
    data = Images()
    trainer = Trainer(
        **given | {"accelerator": "cpu", "max_epochs": 2, "log_every": 1, "progress": False, "name": name},
        global_batch_size=16,
        callbacks=Checkpoint(every=5, keep=None),
    )
    trainer.fit(Net(), DataLoader(data, 8, shuffle=True), DataLoader(data, 24))


if __name__ == "__main__":
    main()
