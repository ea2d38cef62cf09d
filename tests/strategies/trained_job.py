"""On each rank: a run in which something else is trained from its step 3 on, and its weights."""

from __future__ import annotations

import torch
from helpers.trainers import quiet
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, TrainModule
from paceline.strategies import DDP, FSDP, HSDP, DeepSpeed, Single

STRATEGIES = {
    "single": Single,
    "ddp": DDP,
    "fsdp": FSDP,
    "hsdp": lambda: HSDP(replicate=2),
    "tensor": lambda: FSDP(tensor=2),
    **{f"deepspeed_stage_{stage}": lambda stage=stage: DeepSpeed(stage=stage) for stage in (1, 2, 3)},
}
X = torch.linspace(-1, 1, 96).reshape(24, 4)


class Net(TrainModule):
    def __init__(self, way: str, within: bool, frozen_dtype: str):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.more = nn.Identity()
        self.way, self.within = way, within
        if way in ("unfreeze", "add_param_group"):
            self.first.requires_grad_(False).to(getattr(torch, frozen_dtype))
        if way == "untie":
            self.last.weight = self.second.weight

    def parallelize(self, mesh):
        parallelize_module(self, mesh, {"first": ColwiseParallel(output_layouts=Replicate())})

    def training_step(self, batch):
        if self.within:
            self.change()
        x = torch.tanh(self.first(batch[0].to(self.first.weight.dtype))).float()
        return self.last(torch.tanh(self.more(self.second(x)))).square().mean()

    def on_step_start(self, trainer):
        if not self.within:
            self.change()

    def change(self):
        if self.global_step != 2:
            return
        optimizer = self.trainer.optimizers[0]
        if self.way in ("unfreeze", "add_param_group"):
            self.first.requires_grad_(True)
        if self.way == "add_param_group":
            optimizer.add_param_group({"params": list(self.first.parameters()), "lr": 0.05})
        if self.way == "call":
            self.first(X[:1])
        if self.way == "freeze":
            self.second.requires_grad_(False)
        if self.way == "add":
            torch.manual_seed(1 + self.trainer.rank)
            self.more = nn.Linear(4, 4)
            optimizer.add_param_group({"params": list(self.more.parameters()), "lr": 0.05})
        if self.way == "tie":
            self.last.weight = self.second.weight
        if self.way == "untie":
            self.last.weight = nn.Parameter(self.second.weight.detach().clone())
            optimizer.add_param_group({"params": [self.last.weight], "lr": 0.05})

    def configure_optimizers(self):
        first = [] if self.way == "add_param_group" else list(self.first.parameters())
        found = [*first, *self.second.parameters(), *self.last.parameters()]
        return torch.optim.Adam(list(dict.fromkeys(found)), lr=0.05)


def trainer_of(strategy, devices, precision="32"):
    """It trains an epoch, and writes and prints nothing."""
    return quiet(
        strategy=strategy,
        devices=devices,
        max_epochs=1,
        run_dir=None,
        global_batch_size=4,
        precision=precision,
    )


def on_rank(folder, strategy, way, within=False, frozen_dtype="float32", devices=2):
    module = Net(way, within, frozen_dtype)
    trainer = trainer_of(STRATEGIES[strategy](), devices)
    try:
        trainer.fit(module, DataLoader(TensorDataset(X), 4 // devices))
    except PacelineError as error:
        return {"error": str(error), "step": trainer.global_step + 1}
    except RuntimeError as error:
        return {"error": str(error), "notes": error.__notes__}
    weights = trainer.strategy.weights.full_tensors(module)
    return {"error": None, "weights": {name: value.tolist() for name, value in weights.items()}}
