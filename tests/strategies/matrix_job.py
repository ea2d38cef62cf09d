"""Resumes checkpoints, writes each again before any step, trains on where asked to and writes that too.

python matrix_job.py DEVICES FOLDER CASES   (CASES: JSON, a list of {name, strategy, settings ...})

A case ``name`` leaves ``name-read`` (where it resumed ``source``), ``name-wrote`` (after step ``last``;
without one it ends before its first step) and for each rank ``name-RANK.json``: what the first step
computed for each sample, or how the case failed.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint
from paceline.optimizers import MuonWithAdamW
from paceline.strategies import FSDP, HSDP, DeepSpeed

DEVICES = int(sys.argv[1])
FOLDER = Path(sys.argv[2])
GLOBAL, SAMPLES = 12, 101  # nine steps per epoch, the last one ragged
# Under the thresholds as they come a model of this size is whole on each rank, and one sub-group.
IN_PARTS = {"zero_optimization": {"stage3_param_persistence_threshold": 0, "sub_group_size": 60}}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(7), nn.Linear(7, 13), nn.Linear(13, 7)
        self.shift = nn.Parameter(torch.linspace(-0.1, 0.1, 7), requires_grad=False)

    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(self.norm(x)))) + self.shift


class Model(TrainModule):
    """No size that two or three ranks could share evenly, one of 1; frozen parameters; buffers."""

    def __init__(
        self, optimizer: str = "adamw", tied: bool = False, unused: str = "", all_given: bool = False
    ):
        super().__init__()
        if unused == "first":  # of its group
            self.unused = nn.Linear(5, 11, bias=False)
        self.first = nn.Linear(5, 7)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.gate, self.frozen, self.last = nn.Linear(7, 1), nn.Linear(7, 11), nn.Linear(11, 5)
        self.frozen.requires_grad_(False)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 5))
        if tied:
            self.one, self.other = nn.Linear(7, 7), nn.Linear(7, 7)
            self.other.weight = self.one.weight
        if unused == "last":
            self.unused = nn.Linear(5, 11, bias=False)
        self.register_buffer("steps", torch.tensor(0))
        odd = [float("nan"), float("inf"), -0.0, 1e-45, 3.4e38, 1 + 2**-23, 0.1]
        self.register_buffer("odd", torch.tensor(odd))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        self.outputs: dict[int, list[float]] | None = None

    def parallelize(self, mesh):
        columns = ColwiseParallel(use_local_output=False)  # 13 and 11 are no multiples of any size
        plan = dict.fromkeys(("blocks.*.inner", "frozen"), columns)
        parallelize_module(self, mesh, plan | dict.fromkeys(("blocks.*.outer", "last"), RowwiseParallel()))

    def logits(self, x):
        hidden = self.first(x)
        for block in self.blocks:
            hidden = block(hidden)
        if self.hparams["tied"]:
            hidden = self.other(torch.tanh(self.one(hidden)))
        return self.last(torch.tanh(self.frozen(hidden * torch.sigmoid(self.gate(hidden))))) * self.scale

    def training_step(self, batch, batch_idx):
        x, y, index = batch
        logits = self.logits(x)
        self.steps += 1
        if self.outputs is None:
            rows = logits.detach().double()
            self.outputs = dict(zip(index.int().tolist(), rows.tolist(), strict=True))
        return F.cross_entropy(logits, y.long())

    def configure_optimizers(self):
        trained = [p for p in self.parameters() if p.requires_grad or self.hparams["all_given"]]
        groups = [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0, "lr": 0.03},
        ]
        if self.hparams["optimizer"] == "sgd":
            optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
        elif self.hparams["optimizer"] == "muon":
            optimizer = MuonWithAdamW(self, lr=0.02, muon_lr=0.01, eps=1e-3)
        else:
            groups[1]["betas"] = (0.8, 0.95)
            amsgrad = self.hparams["optimizer"] == "amsgrad"
            optimizer = torch.optim.AdamW(groups, lr=0.02, eps=1e-3, amsgrad=amsgrad)
        schedule = LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Writes(Callback):
    """By hand: before the first step, and after the last one; ``forget`` loses the moments between."""

    def __init__(self, name: str, resumed: bool, last: int, forget: bool):
        self.name, self.resumed, self.last, self.forget = name, resumed, last, forget

    def on_fit_start(self, trainer):
        if self.resumed:
            trainer.save_checkpoint(FOLDER / f"{self.name}-read")
        if self.forget:
            trainer.optimizers[0].state.clear()
        if not self.last:
            trainer.stop("read")

    def on_step_boundary(self, trainer):
        if trainer.global_step == self.last:
            self.last = -1  # an epoch's end comes as a boundary of its own
            trainer.save_checkpoint(FOLDER / f"{self.name}-wrote")


def strategy_of(name: str):
    if name == "hsdp":  # two groups, or as many as there are odd ranks
        return HSDP(replicate=DEVICES if DEVICES % 2 else 2)
    if name == "fsdp_tensor":  # all ranks split each layer, or groups of two
        return FSDP(tensor=DEVICES if DEVICES % 2 else 2)
    if name == "hsdp_tensor":
        return HSDP(tensor=2, replicate=DEVICES // 2)
    if name == "deepspeed_stage_3_in_parts":
        return DeepSpeed(3, config=IN_PARTS)
    return name


def run(case: dict) -> None:
    case = dict(case)
    name, source, last = case.pop("name"), case.pop("source", None), case.pop("last", 0)
    forget, background = case.pop("forget", False), case.pop("background", None)
    kept = [] if background is None else [Checkpoint(every=1, keep=None, background=background)]
    torch.manual_seed(3)
    module = Model(**case.pop("model", {}))
    x = torch.randn(SAMPLES, 5, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x.argmax(1), torch.arange(SAMPLES))
    trainer = Trainer(
        strategy=strategy_of(case.pop("strategy")),
        accelerator="cpu",
        devices=DEVICES,
        max_steps=last or 1000,
        global_batch_size=GLOBAL,
        clip_grad_norm=0.5,
        callbacks=[Writes(name, source is not None, last, forget), *kept],
        checkpoint=bool(kept),
        loggers=False,
        progress=False,
        run_dir=FOLDER / "runs" if kept else None,
        name=name,
        **case,
    )
    found: dict = {}
    try:
        resume = None if source is None else FOLDER / source
        trainer.fit(
            module, DataLoader(data, GLOBAL // trainer.ranks.data_world_size, shuffle=True), resume=resume
        )
        found["outputs"] = module.outputs
    except Exception:
        found["error"] = traceback.format_exc()
    (FOLDER / f"{name}-{trainer.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in json.loads(sys.argv[3]):
        run(case)
