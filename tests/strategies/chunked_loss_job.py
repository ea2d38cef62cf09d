"""Trains a language model with the loss of its head in chunks, or at once, under several strategies.

chunked_loss_job.py DEVICES FOLDER NAMES   (names of ``CASES``, separated by commas)
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.recipes.networks.head_loss import mean_loss
from paceline.strategies import FSDP, DeepSpeed

SHARDED = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
CASES = {
    "single": lambda: "single",
    "ddp": lambda: "ddp",
    "fsdp": lambda: "fsdp",
    "gathered": lambda: FSDP(tensor=2),  # the head is split over ranks, and its logits are whole
    "split": lambda: FSDP(tensor=2),
    "deepspeed_stage_2": lambda: "deepspeed_stage_2",
    "deepspeed_stage_3": lambda: DeepSpeed(3, SHARDED),  # small parameters too
}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(x)))


class Language(TrainModule):
    def __init__(
        self, chunk: int | None, tied: bool = False, words: int = 40, width: int = 16, split: bool = False
    ):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def training_step(self, batch):
        tokens, following = batch
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        if self.hparams["chunk"] is None:
            return F.cross_entropy(self.head(x).flatten(0, 1), following.flatten())
        loss, count = mean_loss(
            x, self.head, following, most=4 * len(self.words.weight) * self.hparams["chunk"]
        )
        return {"loss": loss, "weight": count}

    def parallelize(self, mesh):
        as_they_are = (
            {"use_local_output": False} if self.hparams["split"] else {"output_layouts": Replicate()}
        )
        parallelize_module(self, mesh, {"head": ColwiseParallel(**as_they_are)})

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02, eps=1e-3)


def text(words: int, samples: int = 20, length: int = 6) -> TensorDataset:
    draw = torch.Generator().manual_seed(1)
    found = torch.randint(words, (samples, length + 1), generator=draw)
    return TensorDataset(found[:, :-1], found[:, 1:])


def train(folder: Path, name: str, devices: int, **options) -> None:
    """Train for some steps, of two micro-batches a rank, and export to ``name``."""
    trainer = Trainer(
        strategy=CASES[name.partition("@")[0]](),
        accelerator="cpu",
        devices=devices,
        global_batch_size=8,
        max_steps=5,
        clip_grad_norm=0.5,
        progress=False,
        loggers=False,
        run_dir=None,
    )
    module, apart = (
        Language(**options, split=name == "split"),
        1 if name in ("gathered", "split") else devices,
    )
    trainer.fit(module, DataLoader(text(40), batch_size=4 // apart, shuffle=True))
    trainer.export(folder / name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[3].split(","):
        train(Path(sys.argv[2]), case, int(sys.argv[1]), chunk=5, tied=case.endswith("@tied"))
