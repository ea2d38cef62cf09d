"""On each rank: a run in which rank 1 changes a weight by itself, and what became of it."""

from __future__ import annotations

import torch
from helpers.trainers import quiet
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, TrainModule
from paceline.callbacks import Callback, Checkpoint
from paceline.strategies import DDP, FSDP, HSDP, DeepSpeed

STRATEGIES = {
    "ddp": DDP,
    "hsdp": lambda: HSDP(replicate=2),
    "tensor": lambda: FSDP(tensor=2),
    "deepspeed_stage_1": lambda: DeepSpeed(stage=1),
}


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2), nn.LayerNorm(2))
        self.scale = nn.Parameter(torch.ones(2), requires_grad=False)

    def parallelize(self, mesh):
        parallelize_module(self.net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

    def training_step(self, batch):
        return (self.net(batch[0]) * self.scale).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)


class Drifts(Callback):
    """Rank 1 changes a parameter at the end of a step."""

    def __init__(self, name: str, step: int):
        self.name, self.step = name, step

    def on_step_end(self, trainer, outputs):
        if trainer.rank == 1 and trainer.global_step == self.step:
            with torch.no_grad():
                part = trainer.strategy.weights.parameter_parts(trainer.module)[self.name]
                part.view(-1)[0] = torch.nextafter(part.view(-1)[0], torch.tensor(9.0))


def on_rank(folder, strategy, name, step=4, save=0, first=0):
    x = torch.linspace(-1, 1, 160).reshape(40, 4)

    def fit(steps, callbacks=(), **options):
        return quiet(
            strategy=STRATEGIES[strategy](),
            devices=2,
            max_steps=steps,
            max_epochs=9,
            callbacks=callbacks,
            run_dir=folder,
            name="n",
            global_batch_size=4,
        ).fit(Net(), DataLoader(TensorDataset(x), 2), **options)

    saves = [Checkpoint(every=save)] if save else []
    if first:
        fit(first, [Checkpoint(every=first)])
    try:
        fit(9, [Drifts(name, step), *saves], resume="auto" if first else None)
    except PacelineError as error:
        return {"error": str(error)}
    return {"error": None}
