"""Measures the bytes of live tensors on each rank, as a model is made and trained under each strategy.

python memory_job.py DEVICES FOLDER NAME...   -> FOLDER/RANK.json: name -> what was measured, in bytes
"""

from __future__ import annotations

import gc
import json
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from helpers.trainers import quiet
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import TrainModule
from paceline.callbacks import Callback
from paceline.strategies import DDP, FSDP, HSDP, DeepSpeed

WIDTH, BLOCKS = 512, 8
PARAMETERS = BLOCKS * 2 * (WIDTH * WIDTH + WIDTH)  # 4.2 million
BATCH, STEPS = 1, 3
SEEN: list[int] = []


def live_bytes() -> int:
    """The storages of all tensors that Python knows, each once, and those of gradients."""
    storages: dict[int, int] = {}
    for thing in gc.get_objects():
        if not issubclass(type(thing), torch.Tensor):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for tensor in (thing, thing.grad if thing.is_leaf else None):
                if tensor is None or tensor.device.type != "cpu" or hasattr(tensor, "to_local"):
                    continue  # a DTensor's part is a tensor of its own
                storage = tensor.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
    storages.pop(0, None)
    return sum(storages.values())


class Measured(nn.Linear):
    """A layer that measures when it gives itself values."""

    def reset_parameters(self):
        super().reset_parameters()
        if self.weight.device.type != "meta":
            SEEN.append(live_bytes())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = Measured(WIDTH, WIDTH), Measured(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(x)))


class Model(TrainModule):
    def __init__(self):
        super().__init__()
        self.blocks: Any = None

    def configure_model(self):
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def training_step(self, batch):
        hidden = batch[0]
        for block in self.blocks:
            hidden = block(hidden)
        return hidden.square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, foreach=False)


class Measure(Callback):
    """With all gradients there, before the update; and between two steps, without gradients."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.found: dict[str, int] = {}

    def on_fit_start(self, trainer):
        self.found["made"] = live_bytes() - self.base

    def on_before_optimizer_step(self, trainer, optimizer):
        if trainer.global_step == STEPS - 1:  # the moments are there
            gc.collect()
            self.found["before the update"] = live_bytes() - self.base

    def on_step_end(self, trainer):
        if trainer.global_step == STEPS:
            gc.collect()
            self.found["between steps"] = live_bytes() - self.base


def strategy_of(name: str) -> Any:
    """DeepSpeed's buckets are as small as a block, so that they do not hide what is measured."""
    if not name.startswith("zero"):
        one_group = partial(HSDP, replicate=1)
        return {"ddp": DDP, "fsdp": FSDP, "hsdp": HSDP, "hsdp-one-group": one_group}[name]()
    stage = int(name[-1])
    small = {"reduce_bucket_size": WIDTH, "allgather_bucket_size": WIDTH, "overlap_comm": False}
    third = {
        "stage3_param_persistence_threshold": 0,
        "stage3_prefetch_bucket_size": 0,
        "stage3_max_live_parameters": 0,
        "stage3_max_reuse_distance": 0,
    }
    return DeepSpeed(stage, {"zero_optimization": small | (third if stage == 3 else {})})


def measure(name: str, folder: Path, devices: int) -> dict[str, int]:
    gc.collect()
    SEEN.clear()
    base = live_bytes()
    callback = Measure(base)
    trainer = quiet(
        strategy=strategy_of(name),
        devices=devices,
        max_steps=STEPS,
        callbacks=[callback],
        run_dir=folder / "runs",
    )
    trainer.fit(Model(), DataLoader(TensorDataset(torch.ones(BATCH * devices * (STEPS + 1), WIDTH)), BATCH))
    return callback.found | {"most while made": max(SEEN) - base, "parts made": len(SEEN)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {}
    for name in sys.argv[3:]:
        gc.freeze()  # what one strategy leaves behind is no part of the next one's measure, and a run
        before = live_bytes()  # leaves alone what is frozen: what it makes can be found
        found[name] = measure(name, Path(sys.argv[2]), int(sys.argv[1]))
        gc.collect()
        found[name]["left behind"] = live_bytes() - before
    Path(sys.argv[2], f"{torch.distributed.get_rank()}.json").write_text(json.dumps(found))
