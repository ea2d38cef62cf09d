"""Trains a small model on two ranks while a callback watches, and writes down what there was to see.

python watch_job.py FOLDER NAME...   -> FOLDER/NAME.RANK.json for each case and rank
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, ReplicaCheck, Stragglers
from paceline.callbacks.loggers.series import read_rows

SAMPLES, MICRO = 96, 4
EVERY, MEASURED = 7, 5
LEAST = 0.001  # seconds of any step


# -- what is trained ---------------------------------------------------------------------------


class Clock:
    """In the place of ``time.perf_counter``: this rank's own time, which only the code below moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait_for_others(self) -> None:
        """What a rank does in the reduction of gradients, which ends for all when the last one comes."""
        latest = torch.tensor(self.now, dtype=torch.float64)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(latest, torch.distributed.ReduceOp.MAX)
        self.now = latest.item()


CLOCK = Clock()


class Rows(Dataset):
    """A sample takes ``pause`` seconds to read on the ranks ``slow``."""

    def __init__(self, pause: float = 0.0, slow: tuple[int, ...] = (1,)):
        self.pause, self.slow = pause, slow
        self.x = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        if int(os.environ.get("RANK", 0)) in self.slow:
            CLOCK.now += self.pause
        return self.x[index], self.x[index].sum(0, keepdim=True)


class Net(TrainModule):
    """A step takes ``LEAST`` seconds, ``pause`` more on the ranks ``slow``, and fails after ``last`` steps.

    Args:
        timed: Whether ranks wait for each other by their clocks.
    """

    def __init__(
        self, pause: float = 0.0, slow: tuple[int, ...] = (1,), last: int = 10**9, timed: bool = False
    ):
        super().__init__()
        self.pause, self.slow, self.stop_behind, self.timed = pause, slow, last, timed
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)
        self.hooked: list[int] = []

    def training_step(self, batch):
        self.hooked.append(hooks_on(self))
        CLOCK.now += self.pause * (self.trainer.rank in self.slow) + LEAST
        if self.trainer.global_step == self.stop_behind:
            raise PacelineError("this is enough")
        x, y = batch
        return (self.last(torch.tanh(self.first(x))) - y).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        if self.timed:
            optimizer.register_step_pre_hook(lambda *_: CLOCK.wait_for_others())
        return optimizer


def hooks_on(module: nn.Module) -> int:
    """How many hooks wait for gradients of this module's parameters."""
    return sum(len(p._post_accumulate_grad_hooks or ()) for p in module.parameters())


class Disturb(Callback):
    """Changes parameters on rank 1 alone, after a step."""

    def __init__(self, step: int, *names: str):
        self.step, self.names = step, names

    def on_step_end(self, trainer):
        if trainer.global_step == self.step and trainer.rank == 1:
            for name in self.names:
                trainer.module.get_parameter(name).data.view(-1)[0] += 0.5


class Watch(Callback):
    """What was published, and how long whole steps took."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.published: list[dict[str, float]] = []

    def on_step_boundary(self, trainer):
        self.ends.append(time.perf_counter())
        found = {n: v for n, v in trainer.metrics.items() if n.startswith("perf/") and "samples" not in n}
        if found and trainer.global_step % EVERY == 0:
            self.published.append(found)


# -- cases -------------------------------------------------------------------------------------


@dataclass
class Case:
    """What watches, under which strategy, and what is slow."""

    callbacks: Callable[[], list[Callback]]
    strategy: str = "ddp"
    steps: int = 4
    model: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, Any] = field(default_factory=dict)


def checked(*changed: str, every: Any = 1, at: int = 3) -> Callable[[], list[Callback]]:
    return lambda: [*([Disturb(at, *changed)] if changed else []), ReplicaCheck(every)]


def watched() -> list[Callback]:
    return [Stragglers(EVERY)]


REPLICAS = {
    "equal": Case(checked()),
    "changed": Case(checked("first.bias", "last.weight")),
    "changed-seen-later": Case(checked("last.bias", every="3st", at=5), steps=7),
    "changed-seen-at-epoch-end": Case(checked("last.bias", every="1ep", at=9), steps=20),
    "fsdp": Case(checked()),
    "hsdp": Case(checked()),
    **{f"deepspeed_stage_{stage}": Case(checked()) for stage in range(4)},
    "deepspeed_stage_0-changed": Case(checked("last.weight", every=2)),
    "deepspeed_stage_2-changed": Case(checked("last.weight")),
}
STRAGGLERS = {
    "data": Case(watched, steps=23, rows={"pause": 0.01}),
    "compute": Case(watched, steps=23, model={"pause": 0.04}),
    "even": Case(watched, steps=16, model={"pause": 0.03, "slow": (0, 1)}),
    "failing": Case(watched, steps=16, model={"last": 4}),
    "fsdp": Case(watched, steps=16, rows={"pause": 0.01}),
}
for _case in STRAGGLERS.values():
    _case.model["timed"] = True
for _name, _case in [*REPLICAS.items(), *STRAGGLERS.items()]:
    _strategy = _name.removesuffix("-changed")
    if _strategy in ("fsdp", "hsdp") or _strategy.startswith("deepspeed"):
        _case.strategy = _strategy


def observe(case: Case, folder: Path, devices: int = 2) -> dict[str, Any]:
    """Train a case and say what there was to see on this rank."""
    torch.manual_seed(3)
    module, watch = Net(**case.model), Watch()
    trainer = Trainer(
        strategy=case.strategy,
        accelerator="cpu",
        devices=devices,
        max_steps=case.steps,
        callbacks=[*case.callbacks(), watch],
        run_dir=folder / "runs",
        progress=False,
        loggers=["-tensorboard", "-curves"],
        checkpoint=False,
    )
    error = None
    try:
        with mock.patch.object(time, "perf_counter", CLOCK):
            trainer.fit(module, DataLoader(Rows(**case.rows), MICRO))
    except PacelineError as raised:
        error = str(raised)
    assert trainer.folder is not None
    own = "log.txt" if trainer.is_global_zero else f"log-rank-{trainer.rank}.txt"
    rows = trainer.folder / "metrics.jsonl"
    durations = sorted(b - a for a, b in zip(watch.ends, watch.ends[1:], strict=False))
    return {
        "error": error,
        "steps": trainer.global_step,
        "log": (trainer.folder / own).read_text().splitlines(),
        "rows": read_rows(rows) if rows.exists() else [],
        "whole step": durations[len(durations) // 2],
        "published": watch.published,
        "hooked": module.hooked,
        "hooked after": hooks_on(module),
        "parameters": len(list(module.parameters())),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    for given in sys.argv[2:]:
        _kind, _, _name = given.partition("/")
        result = observe({"replicas": REPLICAS, "stragglers": STRAGGLERS}[_kind][_name], root)
        rank = torch.distributed.get_rank()
        (root / f"{_name}.{rank}.json").write_text(json.dumps(result))
        gc.freeze()  # DeepSpeed collects garbage often: a third of a second each over all that is imported
