"""Trains a small language model on one device, or with its layers split over ranks, once for each case.

python tensor_job.py DEVICES FOLDER CASES   (CASES: JSON, name -> {strategy, options, plan, settings ...})
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchmetrics import SumMetric

from paceline import PacelineError, Trainer, TrainModule, tools
from paceline.callbacks import EMA, Checkpoint, Throughput
from paceline.optimizers import MuonWithAdamW
from paceline.strategies import FSDP, HSDP

GLOBAL, STEPS, SAMPLES, LENGTH, VOCABULARY, WIDTH = 12, 4, 29, 8, 20, 8
# Three steps an epoch, the last of five samples.


class Block(nn.Module):
    """Attention of four heads, and an MLP; the number of heads follows from the width it computes."""

    def __init__(self, dropout: float):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out, self.up, self.down = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(3 * WIDTH, WIDTH),
        )

    def forward(self, x):
        normed = self.attention_norm(x)
        query, key, value = (
            part(normed).unflatten(-1, (-1, 2)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(attended.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.down(F.gelu(self.up(self.mlp_norm(x)))))


class Prediction(NamedTuple):
    logits: torch.Tensor


class Model(TrainModule):
    """A decoder whose layers are split by one of several plans."""

    def __init__(
        self,
        plan: str = "layers",
        optimizer: str = "adamw",
        weighted: bool = False,
        tied: bool = False,
        meta: bool = False,
        dropout: float = 0.0,
        gathered: bool = False,
        manual: bool = False,
        batch_norm: bool = False,
        zero: bool = False,
    ):
        super().__init__()
        self.automatic_optimization = not manual
        self.total = SumMetric()
        if not meta:
            self.build()

    def configure_model(self):
        if self.hparams["meta"]:
            self.build()

    def build(self):
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(self.hparams["dropout"]) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        if self.hparams["batch_norm"]:
            self.batch_norm = nn.BatchNorm1d(WIDTH)
        if self.hparams["zero"]:  # no norm within a block has a gradient in step 1
            for block in self.blocks:
                for part in (block.out, block.down):
                    nn.init.zeros_(part.weight)
        if self.hparams["tied"]:
            self.head.weight = self.embedding.weight

    def parallelize(self, mesh):
        names, kind = [f"blocks.{n}." for n in range(2)], self.hparams["plan"]
        columns, rows = ("query", "key", "value", "up"), ("out", "down")
        if kind in ("sequence", "without-norms"):
            plan = {
                "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
                "norm": SequenceParallel(),
                "head": ColwiseParallel(
                    input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
                ),
            }
            for name in names:
                if kind == "sequence":
                    plan |= {f"{name}{part}_norm": SequenceParallel() for part in ("attention", "mlp")}
                plan |= {f"{name}{part}": ColwiseParallel(input_layouts=Shard(1)) for part in columns}
                plan |= {f"{name}{part}": RowwiseParallel(output_layouts=Shard(1)) for part in rows}
        else:
            plan = {f"{name}{part}": ColwiseParallel() for name in names for part in columns}
            plan |= {f"{name}{part}": RowwiseParallel() for name in names for part in rows}
        if kind == "loss":
            plan["head"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
        if kind == "vocabulary":
            plan["embedding"] = RowwiseParallel(input_layouts=Replicate())
            plan["head"] = ColwiseParallel(output_layouts=Replicate())
        if kind == "half-of-a-tie":
            plan["head"] = ColwiseParallel(output_layouts=Replicate())
        if kind == "nothing":
            plan = {}
        if kind == "misspelt":
            plan["heads"] = ColwiseParallel(output_layouts=Replicate())
        if kind == "new-layer":
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        parallelize_module(self, mesh, plan)

    def features(self, tokens):
        x = self.embedding(tokens)
        if self.hparams["batch_norm"]:
            x = self.batch_norm(x.transpose(1, 2)).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def logits(self, tokens):
        return self.head(self.features(tokens))

    def training_step(self, batch):
        tokens, targets, counts = batch
        weights = counts if self.hparams["weighted"] else torch.ones_like(counts)
        losses = F.cross_entropy(self.logits(tokens).flatten(0, 1), targets.flatten(), reduction="none")
        if isinstance(losses, DTensor):  # of split logits
            losses = losses.full_tensor()
        loss = (losses.unflatten(0, tokens.shape).mean(1) * weights).sum() / weights.sum()
        self.log("largest", losses.max(), reduce="max")
        self.log("seen", float(len(tokens)), reduce="sum")
        if self.hparams["gathered"]:
            mine = self.features(tokens).mean(1)
            everyone = self.all_gather(mine, sync_grads=True).flatten(0, 1)
            loss = loss + (mine @ everyone.T).square().mean()
        if self.hparams["manual"]:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            return None
        return {"loss": loss, "weight": weights.sum()} if self.hparams["weighted"] else loss

    def validation_step(self, batch):
        tokens, targets, _ = batch
        self.log("seen", float(len(tokens)), reduce="sum")
        self.total.update(float(len(tokens)))
        self.log("total", self.total)
        return F.cross_entropy(self.logits(tokens).flatten(0, 1), targets.flatten())

    def on_validation_end(self, trainer):
        self.computed = float(self.total.compute())

    def predict_step(self, batch):
        return Prediction(self.logits(batch[0])[:, -1])

    def configure_optimizers(self):
        if self.hparams["optimizer"] == "muon":
            optimizer = MuonWithAdamW(self, lr=0.02, muon_lr=0.01, eps=1e-3)
        elif self.hparams["optimizer"] == "sgd":
            optimizer = torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)
        else:
            groups = [
                {"params": [p for p in self.parameters() if p.ndim > 1], "weight_decay": 0.1},
                {"params": [p for p in self.parameters() if p.ndim < 2], "weight_decay": 0.0},
            ]
            optimizer = torch.optim.AdamW(groups, lr=0.02, eps=1e-3)
        schedule = LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def data(samples: int, seed: int, dtype: torch.dtype) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(VOCABULARY, (samples, LENGTH + 1), generator=generator)
    counts = torch.randint(1, 400, (samples,), generator=generator).to(dtype)
    return TensorDataset(rows[:, :-1], rows[:, 1:], counts)


class Drawn(Dataset):
    """Rows with a number that each process draws for itself."""

    def __init__(self, rows: TensorDataset):
        self.rows, self.own = rows, random.Random(os.getpid())

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        tokens, targets, counts = self.rows[index]
        return (tokens + self.own.randrange(VOCABULARY)) % VOCABULARY, targets, counts


def strategy_of(name: str, options: dict):
    return {"fsdp": FSDP, "hsdp": HSDP}[name](**options) if options else name


def trainer_of(folder: Path, name: str, devices: int, case: dict) -> Trainer:
    case = dict(case)
    return Trainer(
        strategy=strategy_of(case.pop("strategy"), case.pop("options", {})),
        accelerator="cpu",
        devices=devices,
        precision="64",
        max_steps=case.pop("steps", STEPS),
        global_batch_size=GLOBAL,
        clip_grad_norm=case.pop("clip", 0.05),
        log_every=1,
        callbacks=[
            Checkpoint(every=case.pop("every", 1000)),
            *([EMA(case.pop("ema"))] if "ema" in case else []),
            *([Throughput(every=1, tokens=0)] if case.pop("throughput", False) else []),
        ],
        progress=False,
        loggers=["-tensorboard", "-curves"],
        run_dir=folder,
        name=name,
        **case,
    )


def train(folder: Path, name: str, devices: int, case: dict) -> dict:
    """What a rank has to say afterwards."""
    case = dict(case)
    model, pieces = case.pop("model", {}), case.pop("micro_batches", 2)
    action, resume = case.pop("action", None), case.pop("resume", None)
    torch.manual_seed(3)
    module = Model(**model)
    trainer = trainer_of(folder, name, devices, case)
    rows = data(SAMPLES, 1, torch.float64)
    rows = Drawn(rows) if action == "own-data" else rows
    loader = DataLoader(rows, batch_size=GLOBAL // trainer.ranks.data_world_size // pieces, shuffle=True)
    validation = DataLoader(data(19, 2, torch.float64), batch_size=8)
    if action == "invariance":
        result = tools.check_invariance(trainer, module, loader, steps=3)
        return {"equal": bool(result), "text": str(result)}
    run = trainer.fit(module, loader, validation, resume=resume and folder / resume)
    if action == "predict":
        found = trainer.predict(module, validation)
        if trainer.rank == 0:
            torch.save(torch.cat([one.logits for one in found]), folder / f"{name}-predictions.pt")
    if action in ("again", "otherwise"):  # by another trainer, which splits layers alike, or not at all
        options = {} if action == "otherwise" else case["options"]
        trainer = trainer_of(
            folder, name, devices, case | {"options": options, "steps": 2, "strategy": "fsdp"}
        )
        trainer.fit(module, loader)
    timed = [row for row in run.rows if "perf/steps_per_second" in row]
    return {
        "ranks": trainer.ranks.gather_data(trainer.rank),
        "data": [trainer.ranks.data_rank, trainer.ranks.data_world_size],
        "computed": module.computed,
        "tokens": [row["perf/tokens_per_second"] / row["perf/steps_per_second"] for row in timed],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, case in json.loads(sys.argv[3]).items():
        expected = case.pop("error", False)
        try:
            found = train(Path(sys.argv[2]), name, int(sys.argv[1]), case)
        except PacelineError as error:
            if not expected:
                raise
            found = {"error": str(error)}
        rank = int(os.environ.get("RANK", "0"))
        (Path(sys.argv[2]) / f"{name}-{rank}.json").write_text(json.dumps(found))
