"""On each rank: a run in whose step 3 a hook writes or reads parameters, and its weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from helpers.jobs import load_job
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, TrainModule
from paceline.strategies import DeepSpeed

ALL_DIVIDED = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
trained = load_job(Path(__file__).with_name("trained_job.py"))
STRATEGIES = {
    **trained.STRATEGIES,
    "deepspeed_stage_2_offload": partial(DeepSpeed, stage=2, offload=True),
    "deepspeed_stage_3_divided": partial(DeepSpeed, 3, ALL_DIVIDED),
}


class Net(TrainModule):
    def __init__(self, way: str):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 4)
        self.way, self.seen = way, []

    def parallelize(self, mesh):
        parallelize_module(self, mesh, {"first": ColwiseParallel(output_layouts=Replicate())})

    def training_step(self, batch):
        if self.way == "in the step" and self.global_step == 0:
            with torch.no_grad():
                for parameter in self.parameters():
                    parameter.mul_(0.5)
        return self.last(torch.tanh(self.first(batch[0]))).square().mean()

    def on_step_end(self, trainer):
        if self.global_step != 3:
            return
        if self.way == "load_state_dict":
            self.load_state_dict({name: 0.5 * value for name, value in self.state_dict().items()})
        for parameter in self.parameters():
            if self.way == "in place":
                with torch.no_grad():
                    parameter.mul_(0.5)
            if self.way == ".data in place":
                parameter.data.mul_(0.5)
            if self.way == ".data assigned":
                parameter.data = 0.5 * parameter.data
            if self.way == "read":
                with torch.no_grad():
                    self.seen.append(float(parameter.norm()))
            if self.way == "gathered":
                self.write_gathered(parameter, trainer.rank)

    def write_gathered(self, parameter, rank):
        import deepspeed

        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0), torch.no_grad():
            if rank == 0:
                parameter.mul_(0.5)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


def on_rank(folder, strategy, way, devices=2, precision="32"):
    module = Net(way)
    trainer = trained.trainer_of(STRATEGIES[strategy](), devices, precision)
    found = {"error": None, "state": {}}
    try:
        trainer.fit(module, DataLoader(TensorDataset(trained.X), 4 // devices))
        found["state"] = {name: list(value.shape) for name, value in module.state_dict().items()}
    except PacelineError as error:
        found["error"] = str(error)
    weights = trainer.strategy.weights.full_tensors(module)
    whole = {name: value.tolist() for name, value in weights.items()} if trainer.is_global_zero else None
    return found | {"weights": whole, "seen": module.seen}
