"""What all programs here share: data, model, options, what is recorded of a run, and what happens to it.

Nothing in this file helps a program: it draws no seed and keeps no state of a trainer.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import register_optimizer_step_post_hook

parser = argparse.ArgumentParser()
parser.add_argument(
    "--devices", type=int, help="the ranks that are asked for; none: what the launcher gives"
)
parser.add_argument("--batch", type=int, default=8, help="samples of a step, over all ranks")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--samples", type=int, default=96)
parser.add_argument("--save", type=int, default=5, help="a checkpoint every so many steps, in checkpoints/")
parser.add_argument("--strategy", default="ddp", choices=["ddp", "fsdp"])
parser.add_argument("--resume", action="store_true", help="from the newest checkpoint")
parser.add_argument("--evaluate", action="store_true", help="the new model alone, without training")
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes longer")
parser.add_argument("--fault", default="", help="kill:STEP or nan:STEP:RANK")
parser.add_argument(
    "--guard", action="store_true", help="what the trainer has against losses that are not finite"
)
options = parser.parse_args()
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
what, _, at = options.fault.partition(":")
fault = {what: [int(part) for part in at.split(":")]} if what else {}
torch.set_num_threads(1)


class Samples(torch.utils.data.Dataset):
    """Points, each with one of four labels and its number, by which what was read is recorded."""

    classes, kind = 4, torch.float32

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(count, 16, generator=generator)
        self.y = (self.x @ torch.randn(16, self.classes, generator=generator)).argmax(1)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.x[index].to(self.kind), "y": self.y[index], "index": torch.tensor(index)}


class Net(nn.Module):
    """A classifier that returns its loss with its logits, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        width = options.width
        self.layers = nn.Sequential(
            nn.Linear(16, width), nn.ReLU(), nn.Dropout(options.dropout), nn.Linear(width, 4)
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor, index: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(x)
        loss = cross_entropy(logits, y)
        if self.training:
            loss = _watch(index, loss)
        else:
            _record(evaluated=index.tolist())
        return {"loss": loss, "logits": logits}


_batches = 0


def _watch(index: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
    """Record a batch that is trained on, and let happen what is to happen there."""
    global _batches
    _batches += 1
    time.sleep(options.pause)
    if fault.get("kill") == [_batches]:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.get("nan") == [_batches, RANK]:
        loss = loss * float("nan")
    _record(batch=index.tolist(), loss=loss.item())
    return loss


def _record(**values: Any) -> None:
    line = json.dumps({"rank": RANK, "pid": os.getpid()} | values) + "\n"
    with Path("records.jsonl").open("a") as file:
        file.write(line)


def _updated(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    group = optimizer.param_groups[0]
    _record(lr=group["lr"], sharded=isinstance(group["params"][0], DTensor))


register_optimizer_step_post_hook(_updated)


def report(**values: Any) -> None:
    """What a program found, from rank 0."""
    if RANK == 0:
        _record(**{name: float(value) for name, value in values.items()})


def done(net: nn.Module) -> None:
    """The weights at the end, whole under every strategy."""
    weights = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if RANK == 0:
        torch.save({name.rpartition("layers.")[2]: value for name, value in weights.items()}, "final.pt")
