"""A program drawn from a seed, as users write them, and the weights that it ends with.

The tests import this file too: a program alone on one device is ``run(folder, seed, "single", 2)``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import EMA, Checkpoint
from paceline.strategies import DDP, FSDP, DeepSpeed, Single

WIDTH, GLOBAL, SAMPLES = 4, 8, 36  # the last step of an epoch has 4 samples
DEPTHS, ROWS = (2, 4), torch.linspace(-1, 1, SAMPLES * WIDTH).reshape(SAMPLES, WIDTH)


@dataclass(frozen=True)
class Program:
    """What a seed draws: of the model, of how it is trained, and of what changes after 3 steps."""

    depth: int
    norm: str
    dropout: float
    tied: bool
    frozen: bool
    change: str
    reused: bool
    recomputed: str
    accumulation: int
    clip: float | None
    ema: bool
    optimizer: str
    schedule: bool
    first: str
    second: str

    @property
    def changes(self) -> bool:
        """Whether something else is trained from step 4 on."""
        return self.change == "unfreeze" or (self.change == "freeze" and not self.frozen)

    @classmethod
    def of(cls, seed: int) -> Program:
        draw = random.Random(seed)
        accumulation = draw.choice([1, 1, 2])
        dropout = draw.choice([0.0, 0.0, 0.3])
        first = draw.choice([*WORLDS])
        return cls(
            depth=draw.randint(*DEPTHS),
            # Statistics are of a micro-batch, which is another one on two ranks.
            norm=draw.choice(["none", "layer", *(["batch"] if accumulation == 1 else [])]),
            dropout=dropout,
            tied=draw.random() < 0.3,
            frozen=draw.random() < 0.4,
            change=draw.choice(["none", "none", "none", "freeze", "unfreeze"]),
            reused=draw.random() < 0.4,
            recomputed=draw.choice(["none", "none", "strategy", "reentrant", "not reentrant"]),
            accumulation=accumulation,
            clip=draw.choice([None, 0.05]),
            ema=draw.random() < 0.4,
            optimizer=draw.choice(["SGD", "Adam"]),
            schedule=draw.random() < 0.5,
            first=first,
            second=first if dropout else draw.choice([*WORLDS]),  # ranks draw for themselves
        )


WORLDS = {
    "single": Single,
    "ddp": DDP,
    "fsdp": FSDP,
    **{f"deepspeed_stage_{stage}": partial(DeepSpeed, stage=stage) for stage in (1, 2, 3)},
}
NORMS = {"none": nn.Identity, "layer": nn.LayerNorm, "batch": nn.BatchNorm1d}


class Block(nn.Module):
    def __init__(self, program: Program):
        super().__init__()
        self.norm = NORMS[program.norm](*([WIDTH] if program.norm != "none" else []))
        self.line, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(program.dropout)

    def forward(self, x):
        return x + self.dropout(torch.tanh(self.line(self.norm(x))))


class Net(TrainModule):
    def __init__(self, program: Program):
        super().__init__()
        torch.manual_seed(1)
        self.program = program
        self.inside = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(program) for _ in range(program.depth))
        self.out = nn.Linear(WIDTH, WIDTH)
        if program.tied:
            self.out.weight = self.inside.weight
        if program.frozen or program.change == "unfreeze":
            self.blocks[0].requires_grad_(False)

    def training_step(self, batch):
        x = self.inside(batch[0])
        for block in [*self.blocks, *([self.blocks[-1]] if self.program.reused else [])]:
            if self.program.recomputed in ("reentrant", "not reentrant"):
                x = checkpoint(block, x, use_reentrant=self.program.recomputed == "reentrant")
            else:
                x = block(x)
        return (self.out(x) - batch[0].flip(1)).square().mean()

    def on_step_start(self, trainer):
        if trainer.global_step == 3 and self.program.change != "none":
            self.blocks[0].requires_grad_(self.program.change == "unfreeze")

    def configure_optimizers(self):
        # All of them: what is frozen is skipped.
        rate = {"SGD": {"lr": 0.2, "momentum": 0.9}, "Adam": {"lr": 0.02}}[self.program.optimizer]
        optimizer = getattr(torch.optim, self.program.optimizer)(self.parameters(), **rate)
        if not self.program.schedule:
            return optimizer
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)]


def run(
    folder: Any,
    seed: int,
    world: str,
    epochs: int,
    name: str,
    resume: str | None = None,
    precision: str = "32",
) -> Any:
    """What the program ends with after so many epochs of 5 steps: the error, or weights and EMA's."""
    program, devices = Program.of(seed), 1 if world == "single" else 2
    module = Net(program)
    trainer = Trainer(
        strategy=WORLDS[world](activation_checkpointing=program.recomputed == "strategy"),
        devices=devices,
        accelerator="cpu",
        progress=False,
        loggers=False,
        max_epochs=epochs,
        callbacks=[Checkpoint(), *([EMA(decay=0.8)] if program.ema else [])],
        run_dir=folder / name,
        global_batch_size=GLOBAL,
        clip_grad_norm=program.clip,
        sync_batchnorm=program.norm == "batch" and devices > 1,
        precision=precision,
    )
    micro = GLOBAL // devices // program.accumulation
    rows = ROWS.double() if precision == "64" else ROWS
    data = DataLoader(TensorDataset(rows), micro, shuffle=True)
    try:
        trainer.fit(module, data, resume=resume)
    except PacelineError as error:
        return {"error": str(error)}
    weights = trainer.strategy.weights.full_tensors(module)
    return {
        "weights": {key: t.double().tolist() for key, t in weights.items() if not t.is_meta},
        "latest": str(trainer.run.latest),
    }


on_rank = run
