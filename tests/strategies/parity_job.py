"""Trains one small model once for each case, on a given number of ranks, and keeps what came out.

python parity_job.py DEVICES FOLDER CASES   (CASES: JSON, name -> {strategy, settings ...})
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import EMA, Checkpoint
from paceline.optimizers import MuonWithAdamW
from paceline.strategies import DDP, FSDP, HSDP, DeepSpeed, Distributed

GLOBAL, STEPS, SAMPLES, VALIDATION = 16, 8, 43, 37


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(self.norm(x))))


class Model(TrainModule):
    """Blocks to shard, a parameter that training_step uses itself, and batch norms where asked for."""

    def __init__(
        self,
        optimizer: str,
        weighted: bool = False,
        batch_norm: bool = False,
        tied: bool = False,
        orthogonalised_in: str = "float32",
    ):
        super().__init__()
        width = 6
        self.first = nn.Linear(5, width)
        self.norm = nn.BatchNorm1d(width) if batch_norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.last = nn.Linear(width, width if tied else 4)
        self.again = nn.Linear(width, width)
        if tied:
            self.again.weight = self.last.weight
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, width if tied else 4))
        if not tied:
            self.again = nn.Identity()

    def logits(self, x):
        hidden = self.norm(self.first(x))
        for block in self.blocks:
            hidden = block(hidden)
        return self.again(self.last(hidden))

    def training_step(self, batch, batch_idx):
        x, y, tokens = batch
        losses = F.cross_entropy(self.logits(x) * self.scale, y, reduction="none")
        self.log("largest", losses.max(), reduce="max")
        if not self.hparams["weighted"]:
            return {"loss": losses.mean(), "accuracy": (losses < 1).double().mean()}
        return {"loss": (losses * tokens).sum() / tokens.sum(), "weight": tokens.sum()}

    def validation_step(self, batch, batch_idx):
        x, y, _ = batch
        logits = self.logits(x)
        self.log("seen", float(len(x)), reduce="sum")
        return {"loss": F.cross_entropy(logits, y), "accuracy": (logits.argmax(1) == y).double().mean()}

    def configure_optimizers(self):
        if self.hparams["optimizer"] == "sgd":
            optimizer = torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)
        elif self.hparams["optimizer"] == "muon":
            dtype = getattr(torch, self.hparams["orthogonalised_in"])
            optimizer = MuonWithAdamW(self, lr=0.02, muon_lr=0.01, eps=1e-3, orthogonalisation_dtype=dtype)
        else:
            decayed = [p for p in self.parameters() if p.ndim > 1]
            others = [p for p in self.parameters() if p.ndim < 2]
            groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
            optimizer = torch.optim.AdamW(groups, lr=0.02, eps=1e-3)
        schedule = LambdaLR(optimizer, lambda step: 1 / (1 + 0.2 * step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class LateAverage(Distributed):
    """A strategy as a user would write it: gradients meet after the last backward of a step."""

    name = "late-average"
    _last = True

    def setup(self, module, build_optimizers):
        self.prepare_module(module)
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        return build_optimizers()

    def synchronise_gradients(self, enabled):
        self._last = enabled

    def backward(self, loss):
        super().backward(loss)
        if self._last:
            self.average_gradients(self._parameters)


STRATEGIES = {
    "DDP": DDP,
    "FSDP": FSDP,
    "HSDP": HSDP,
    "DeepSpeed": DeepSpeed,
    "LateAverage": LateAverage,
}


def data(dtype: torch.dtype, samples: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 5, generator=generator, dtype=torch.float64).to(dtype)
    tokens = torch.randint(1, 400, (samples,), generator=generator).to(dtype)
    return TensorDataset(x, x[:, :4].argmax(1), tokens)


def train(folder: Path, name: str, devices: int, case: dict) -> None:
    case = dict(case)
    strategy, options = case.pop("strategy"), case.pop("options", {})
    model = {"optimizer": case.pop("optimizer", "adamw")} | case.pop("model", {})
    precision = case.pop("precision", "32")
    samples = case.pop("samples", SAMPLES)
    dtype = torch.float64 if precision == "64" else torch.float32
    micro = case.pop("micro_batch", GLOBAL // devices // 2)
    torch.manual_seed(3)
    module = Model(**model)
    trainer = Trainer(
        strategy=STRATEGIES[strategy](**options) if strategy in STRATEGIES else strategy,
        accelerator="cpu",
        devices=devices,
        precision=precision,
        max_steps=case.pop("steps", STEPS),
        global_batch_size=GLOBAL,
        clip_grad_norm=case.pop("clip", 0.05),
        log_every=1,
        callbacks=[Checkpoint(every=1000), *([EMA(case.pop("ema"))] if "ema" in case else [])],
        progress=False,
        loggers=["-tensorboard", "-curves"],
        run_dir=folder,
        name=name,
        **case,
    )
    loader = DataLoader(data(dtype, samples, 1), batch_size=micro, shuffle=True)
    trainer.fit(module, loader, DataLoader(data(dtype, VALIDATION, 2), batch_size=5))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, case in json.loads(sys.argv[3]).items():
        train(Path(sys.argv[2]), name, int(sys.argv[1]), case)
