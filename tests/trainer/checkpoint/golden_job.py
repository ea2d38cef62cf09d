"""Writes the golden checkpoints: what this version's format looks like, kept for later versions to read.

python golden_job.py STRATEGY FOLDER   (FOLDER: tests/golden/format-1; what is there stays as it is)
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Checkpoint, EarlyStopping

WRITERS = {"single": 1, "ddp": 2, "fsdp": 2, "deepspeed_stage_2": 2}
AT, END = 4, 9  # of 3 steps an epoch


class Golden(TrainModule):
    def __init__(self, width: int = 5, betas: tuple[float, float] = (0.9, 0.99), notes: dict | None = None):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.head = nn.Linear(3, width), nn.Linear(width, 1)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.betas = betas

    def training_step(self, batch):
        self.steps += 1
        return self.head(self.norm(self.net(batch[0]))).square().mean()

    def validation_step(self, batch):
        return self.head(self.norm(self.net(batch[0]))).square().mean()

    def configure_optimizers(self):
        decayed, others = (
            [p for p in self.parameters() if p.ndim > 1],
            [p for p in self.parameters() if p.ndim == 1],
        )
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 0.02}]
        optimizer = torch.optim.AdamW(groups, lr=0.01, betas=self.betas, eps=1e-3)
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)


def data() -> DataLoader:
    x = torch.linspace(-1, 1, 72).reshape(24, 3)
    return DataLoader(TensorDataset(x), 8, shuffle=True)


def train(
    folder: Path, resume: str | Path | None = None, name: str = "golden", **settings
) -> tuple[Golden, Trainer]:
    module = Golden(notes={"of": [1, 2]})
    trainer = Trainer(
        accelerator="cpu",
        progress=False,
        loggers=False,
        run_dir=folder,
        name=name,
        global_batch_size=8,
        callbacks=[Checkpoint(AT, monitor="val/loss", keep=None), EarlyStopping("val/loss", patience=99)],
        **({"max_steps": END} | settings),
    )
    trainer.fit(module, data(), data(), resume=resume)
    return module, trainer


if __name__ == "__main__":
    strategy, folder = sys.argv[1], Path(sys.argv[2])
    runs = Path(tempfile.gettempdir()) / f"golden-{strategy}"
    _, trainer = train(runs, strategy=strategy, devices=WRITERS[strategy], max_steps=AT)
    if trainer.is_global_zero:
        shutil.copytree(trainer.run.latest, folder / strategy)
        shutil.rmtree(runs)
    if strategy == "single":
        module, _ = train(runs, max_steps=END)
        save_file(dict(module.state_dict()), str(folder / f"weights-at-{END}.safetensors"))
        shutil.rmtree(runs)
