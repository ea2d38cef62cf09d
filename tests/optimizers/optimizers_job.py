"""For ``run_cases``: trains a small model on two ranks, in one go and stopped and resumed."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint
from paceline.optimizers import LowPrecisionState, MuonWithAdamW
from paceline.strategies import DeepSpeed

STEPS, STOP = 6, 3
WIDTH = 7  # of which two ranks have no equal parts
# Under the thresholds as they come a model of this size is whole on each rank, and one sub-group.
IN_PARTS = {"zero_optimization": {"stage3_param_persistence_threshold": 0, "sub_group_size": 60}}


class Model(TrainModule):
    def __init__(self, optimizer: str, width: int = WIDTH, gates: int = 1):
        super().__init__()
        self.embed = nn.Embedding(5, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.gate = nn.Linear(width, gates)  # a matrix of one row: one of two ranks has none of it
        self.head = nn.Linear(width, 5)

    def training_step(self, batch):
        x = self.embed(batch[0])
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        gate = torch.sigmoid(self.gate(x)).mean(1, keepdim=True)
        return F.cross_entropy(self.head(x * gate), batch[1])

    def configure_optimizers(self):
        optimizer = make_optimizer(self, self.hparams["optimizer"])
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def make_optimizer(module: nn.Module, name: str) -> torch.optim.Optimizer:
    if name == "muon":
        return MuonWithAdamW(module, lr=0.02, muon_lr=0.01, eps=1e-3)
    if name == "low-muon":
        return LowPrecisionState(MuonWithAdamW(module, lr=0.02, muon_lr=0.01, eps=1e-3), chunk_bytes=100)
    if name == "low":
        return LowPrecisionState(torch.optim.AdamW(module.parameters(), lr=0.02, eps=1e-3), chunk_bytes=100)
    if name == "adamw":
        return torch.optim.AdamW(module.parameters(), lr=0.02, eps=1e-3)
    import torchao.optim

    return getattr(torchao.optim, name)(module.parameters(), lr=0.02, eps=1e-3)


class WriteWhatWasRead(Callback):
    def on_fit_start(self, trainer):
        trainer.save_checkpoint(Path(trainer.folder).parent / "read")


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(5, (40,), generator=generator)
    return TensorDataset(x, (x * 3 + 1) % 5)


def strategy_of(name: str):
    return DeepSpeed(3, config=IN_PARTS) if name == "deepspeed_stage_3_in_parts" else name


def fit(folder: Path, name: str, strategy: str, model: dict, devices: int = 2, **options) -> None:
    resume, writes = options.pop("resume", None), options.pop("writes", False)
    torch.manual_seed(3)
    with torch.device("meta" if options.pop("meta", False) else "cpu"):
        module = Model(**model)
    trainer = Trainer(
        strategy=strategy_of(strategy),
        accelerator="cpu",
        devices=devices,
        max_steps=options.pop("steps", STEPS),
        global_batch_size=8,
        clip_grad_norm=1.0,
        callbacks=[Checkpoint(every=1000), *([WriteWhatWasRead()] if writes else [])],
        loggers=False,
        progress=False,
        run_dir=folder,
        name=name,
        **options,
    )
    trainer.fit(module, DataLoader(data(), 4, shuffle=True), resume=resume)


def on_rank(folder: Path, strategy: str, optimizer: str, source: str = "", **options) -> dict:
    """In one go, and stopped and resumed; or from another run's step 3 on."""
    torch.set_num_threads(1)
    sys.argv[1:] = []  # inductor reads them as strings, and run_cases leaves others there
    model = {"optimizer": optimizer, "width": options.pop("width", WIDTH), "gates": options.pop("gates", 1)}
    # torch 2.13 may take the graph of a rank with more rows out of its cache: docs/guides/optimizers.md.
    alone = torch.compiler.config.patch(force_disable_caches=True)
    eager = mock.patch.object(torch, "compile", lambda function, **settings: function)
    try:
        with alone, eager if options.pop("eager", True) else nullcontext():
            if source:
                fit(folder, "parts", strategy, model, resume=folder.parent / source, writes=True, **options)
                return {}
            fit(folder, "whole", strategy, model, **options)
            if "steps" in options:
                return {}
            fit(folder, "parts", strategy, model, steps=STOP, **options)
            fit(folder, "parts", strategy, model, resume="latest", **options)
    except PacelineError as error:
        return {"error": str(error)}
    return {}
