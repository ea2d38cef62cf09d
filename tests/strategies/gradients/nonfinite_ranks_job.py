"""Trains with gradients that are not finite on one of the ranks, and notes who found them.

python nonfinite_ranks_job.py RANKS FOLDER   -> FOLDER/RANK.json

Four ranks are two groups of ``hsdp``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.data import DataLoader

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback
from paceline.strategies import FSDP, HSDP
from paceline.trainer.faults.nonfinite import Guard

NAN, INF = float("nan"), float("inf")
ZEROS, ONES = [0] * 4, [1] * 4
HUGE = 3e38  # its square is infinite


class Watches(Callback):
    """Sees gradients before they are clipped, and might change them."""

    def on_before_optimizer_step(self, trainer: Trainer, optimizer: torch.optim.Optimizer) -> None:
        """Leave them as they are."""


class Net(TrainModule):
    """Its loss is finite, its gradients are the batch: three numbers for one weight, one for the other."""

    def __init__(self) -> None:
        super().__init__()
        self.three, self.one = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(1))
        self.fails_at: int | None = None

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        if batch_idx == self.fails_at:
            raise ValueError("as asked")
        weights = torch.cat([self.three, self.one])
        weights.register_hook(lambda gradient: batch[0])
        return weights.sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def trained(rows: list[list[float]], nonfinite: str, module: TrainModule, options: Any = ()) -> dict:
    """Two micro-batches of each of two ranks, one of each of four: what was raised, and the weights.

    Args:
        options: For the strategy; some of the trainer's are among them.
    """
    options = dict(options)
    more = {
        name: options.pop(name) for name in ("accumulate", "clip_grad_norm", "callbacks") if name in options
    }
    data = DataLoader([torch.tensor(row, dtype=torch.float32) for row in rows], batch_size=1)
    trainer = Trainer(
        strategy=HSDP() if dist.get_world_size() == 4 else FSDP(**options),
        devices=dist.get_world_size(), accelerator="cpu", max_epochs=1, nonfinite=nonfinite,
        precision=getattr(module, "precision", "32"), **more,
        checkpoint=False, loggers=False, progress=False,
    )  # fmt: skip
    raised = ""
    try:
        trainer.fit(module, data)
    except (PacelineError, ValueError) as error:
        raised = str(error)
    weights = torch.cat([p.full_tensor().detach().flatten() for p in module.parameters()])
    return {
        "raised": raised,
        "weights": list(map(str, weights.tolist())),
        "skipped": trainer.counters.skipped_steps,
    }


class Blocks(Net):
    """Several parts that are reduced, each with such a gradient, and an optimizer that takes the flag."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(1, 1), nn.Tanh()) for _ in range(3)))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) + self.blocks(batch[:, :1]).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.5, fused=True)


class Changed(TrainModule):
    """Finite contributions, the first four numbers of a batch; its loss's weight is the fifth.

    Args:
        hook: Divides each shard by its own sum, after the reduction.
    """

    def __init__(self, hook: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def training_step(self, batch: Tensor) -> Any:
        loss = ((self.weight - self.weight.detach()) * batch[0, :4]).sum()
        return loss if self.hparams["hook"] else {"loss": loss, "weight": batch[0, 4].item()}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        def divide(weight: Any) -> None:
            weight.grad.to_local().div_(weight.grad.to_local().sum())

        if self.hparams["hook"]:
            self.weight.register_post_accumulate_grad_hook(divide)
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Half(Net):
    """All of it in float16, whose numbers may be as large as 65504."""

    precision = "fp16-true"


def read_late(guard: Any, *given: Any, made: Any = Guard.__init__, **more: Any) -> None:
    """As on an accelerator with a fused optimizer."""
    made(guard, *given, **more)
    guard.late = True


def main() -> None:
    rank, folder = int(os.environ["RANK"]), Path(sys.argv[2])
    os.chdir(folder)
    dist.init_process_group("gloo")
    if dist.get_world_size() == 4:
        runs = {how: trained([ONES, ONES, ONES, [1, 1, NAN, 1]], how, Net()) for how in ("raise", "skip")}
        (folder / f"{rank}.json").write_text(json.dumps(runs))
        return
    runs = {}
    clip = {"clip_grad_norm": 2.0}
    hooked = clip | {"callbacks": [Watches()]}
    for name, row, options in [
        ("one", [1, 1, 1, NAN], {}),
        ("last", [1, 1, NAN, 1], {}),
        ("clip", [1, 1, 1, NAN], clip),
        ("clip, hooked", [1, 1, 1, INF], hooked),
        ("clip, large", [1, 1, 1, HUGE], clip),
    ]:
        for nonfinite in ("raise", "skip"):
            rows = [ZEROS, ZEROS, ONES, row]
            runs[f"{name} {nonfinite}"] = trained(rows, nonfinite, Net(), options)
    for name, options in {"clip, finite": clip, "clip, finite, hooked": hooked}.items():
        runs[name] = trained([[3, 0, 4, 12]] * 2, "raise", Net(), options)
    module = Net()
    for nonfinite in ("raise", "ignore"):  # a later run of a sharded module goes by its own setting
        runs[f"again {nonfinite}"] = trained([ZEROS, ZEROS, ONES, [1, 1, INF, 1]], nonfinite, module)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for name, options in {"whole": {}, "mixed": {"mixed_precision": policy}}.items():
        module, options = Net(), {**options, "accumulate": 2}
        module.fails_at = 1
        runs[f"{name}, cut"] = trained([ONES] * 4, "raise", module, options)
        module.fails_at = None
        runs[f"{name}, after it"] = trained([ZEROS, ZEROS, ONES, [1, 1, 3, 1]], "raise", module, options)
    start = [[0, 0, 0, 0, 1]] * 2
    runs["weights"] = trained([*start, *[[1, 1, 1, 1e12, -1]] * 2], "raise", Changed())
    runs["hook"] = trained([[1, 1, 1, 1]] * 2 + [[1, 1, 0, 0]] * 2, "raise", Changed(hook=True))
    runs["half"] = trained([ZEROS, ZEROS, ZEROS, [0, 0, 0, 40000]], "raise", Half())
    wide = {"mixed_precision": MixedPrecisionPolicy(reduce_dtype=torch.float32), "accumulate": 2}
    runs["wide"] = trained([[0, 0, 0, 50000]] * 4, "raise", Half(), wide)
    with mock.patch.object(Guard, "__init__", read_late):
        runs["late"] = trained([ONES, ONES, ONES, [NAN] * 4], "raise", Blocks())
    (folder / f"{rank}.json").write_text(json.dumps({"runs": runs}))


if __name__ == "__main__":
    main()
