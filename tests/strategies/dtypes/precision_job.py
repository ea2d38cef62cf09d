"""Trains a small transformer in each precision under each strategy, and looks at the dtypes of a step."""

from __future__ import annotations

import faulthandler
from pathlib import Path
from typing import Any

import torch
from helpers.trainers import quiet
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint
from paceline.strategies import HSDP, Float8, Full

SECONDS = 200
STEPS, GLOBAL, TOKENS, WIDTH, LENGTH = 50, 16, 17, 32, 12


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.after(x))))


class Language(TrainModule):
    """Next-token prediction on sequences that count upwards from a random start, in random strides."""

    def __init__(self, optimizer: str, unused: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS)
        self.seen: set[str] = set()
        if unused:
            self.unused = nn.Parameter(torch.zeros(3))

    def training_step(self, batch: Any) -> Any:
        rows = batch[0]
        x = self.tokens(rows[:, :-1]) + self.places
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        self.seen.add(str(logits.dtype))
        return F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())

    def configure_optimizers(self) -> Any:
        if self.hparams["optimizer"] == "still":
            return torch.optim.SGD(self.parameters(), lr=0.0)
        if self.hparams["optimizer"] == "sgd":
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def rows() -> TensorDataset:
    draw = torch.Generator().manual_seed(1)
    first, stride = (torch.randint(1, high, (160, 1), generator=draw) for high in (TOKENS, 4))
    return TensorDataset((first + stride * torch.arange(LENGTH + 1)) % TOKENS)


class Watch(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []
        self.dtypes: dict[str, str] = {}

    def on_step_end(self, trainer: Any, outputs: Any) -> None:
        mean = trainer.ranks.all_reduce(torch.stack([o.detach().double() for o in outputs]).mean())
        self.losses.append(mean.item() / trainer.world_size)
        if trainer.global_step > 1:
            return
        named = dict(trainer.module.named_parameters())["blocks.0.up.weight"]
        tensors, _ = trainer.strategy.weights.optimizer_state(trainer.module, trainer.optimizers[0])
        moments = {t.dtype for name, t in tensors.items() if name.endswith((".exp_avg", "momentum_buffer"))}
        assert len(moments) == 1, moments
        self.dtypes = {"parameters": str(named.dtype), "moments": str(moments.pop())}


def train(
    folder: Path,
    strategy: str,
    precision: str,
    optimizer: str = "adamw",
    devices: int = 2,
    accumulate: int = 1,
) -> dict[str, Any]:
    """The loss of each step, and the dtypes of parameters, moments and what the last layer computes."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    module, watch = Language(optimizer), Watch()
    try:
        trainer = quiet(
            strategy=HSDP(replicate=2) if strategy == "hsdp" else strategy,
            devices=devices,
            precision=Float8(emulate=True, min_features=16) if precision == "fp8 emulated" else precision,
            max_steps=STEPS,
            global_batch_size=GLOBAL,
            callbacks=[watch],
            run_dir=None,
        )
        trainer.fit(module, DataLoader(rows(), GLOBAL // devices // accumulate, shuffle=True))
    except PacelineError as error:
        return {"refused": str(error)}
    finally:
        faulthandler.cancel_dump_traceback_later()
    return {"losses": watch.losses, "dtypes": {**watch.dtypes, "computed": module.seen.pop()}}


def resumed(
    folder: Path, strategy: str, precision: str, optimizer: str, devices: int = 2
) -> dict[str, Any]:
    """The losses of a run, and of one that resumes its checkpoint of the middle."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    found: dict[str, list[float]] = {}
    for name, resume in (("whole", None), ("rest", folder / "whole/n/1/checkpoints/step-00000003")):
        watch = Watch()
        trainer = Trainer(
            strategy=HSDP(replicate=2) if strategy == "hsdp" else strategy,
            accelerator="cpu",
            devices=devices,
            precision=precision,
            max_steps=6,
            global_batch_size=GLOBAL,
            callbacks=[watch, Checkpoint(every=3, keep=None)],
            progress=False,
            loggers=False,
            run_dir=folder / name,
            name="n",
        )
        loader = DataLoader(rows(), GLOBAL // devices // 2, shuffle=True)
        trainer.fit(Language(optimizer), loader, resume=resume)
        found[name] = watch.losses
    faulthandler.cancel_dump_traceback_later()
    return found


class Gradients(Callback):
    """Those of each step."""

    def __init__(self) -> None:
        self.found: list[dict[str, list[float]]] = []

    def on_before_optimizer_step(self, trainer: Any, optimizer: Any) -> None:
        found = trainer.strategy.weights.full_gradients(trainer.module)
        self.found.append({n: g.double().flatten().tolist() for n, g in found.items()})


def gradients(
    folder: Path,
    strategy: str,
    devices: int = 2,
    accumulate: int = 4,
    narrow: bool = False,
    unused: bool = False,
) -> dict[str, Any]:
    """The gradients of two steps under bf16-true, of several micro-batches on each rank.

    In the first one DDP looks which parameters get a gradient, and averages them without its reducer.
    """
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    watch = Gradients()
    dtype = torch.bfloat16 if narrow else None
    trainer = quiet(
        strategy=HSDP(replicate=2) if strategy == "hsdp" else strategy,
        devices=devices,
        precision=Full("bf16-true", torch.bfloat16, accumulate_dtype=dtype, reduce_dtype=dtype),
        max_steps=2,
        global_batch_size=GLOBAL,
        callbacks=[watch],
        run_dir=None,
    )
    trainer.fit(Language("still", unused), DataLoader(rows(), GLOBAL // devices // accumulate))
    faulthandler.cancel_dump_traceback_later()
    return {"steps": watch.found}


def exact_gradients(
    micro_batches: int, step: int
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Those of the same micro-batches in bfloat16, and their sizes, averaged in double precision."""
    module = Language("still").to(torch.bfloat16)
    means = {n: torch.zeros(p.shape, dtype=torch.float64) for n, p in module.named_parameters()}
    sizes = {name: mean.clone() for name, mean in means.items()}
    for part in rows().tensors[0][step * GLOBAL :][:GLOBAL].chunk(micro_batches):
        module.zero_grad()
        module.training_step([part]).backward()
        for name, parameter in module.named_parameters():
            means[name] += parameter.grad.double() / micro_batches
            sizes[name] += parameter.grad.double().abs() / micro_batches
    return means, sizes
