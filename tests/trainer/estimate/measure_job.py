"""Measures what ranks allocate in the third step, by glibc, and the tensors that can be distinguished.

python measure_job.py FOLDER CASES   (CASES: JSON, name -> arguments of ``measure``), on one rank
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from helpers.jobs import load_job
from helpers.trainers import quiet

from paceline.callbacks import Callback
from paceline.strategies import DDP, FSDP, DeepSpeed, Single, make_strategy
from paceline.strategies.tensors.sharding import local_part

# On some CPUs MKL keeps scratch memory for its products, some MB, which is no part of the estimate.
os.environ["MKL_DISABLE_FAST_MM"] = "1"

HERE = Path(__file__).parent
STEP = 3
STRATEGIES = {"DDP": DDP, "FSDP": FSDP, "DeepSpeed": DeepSpeed, "Single": Single}
heap = load_job(HERE / "heap.py")
models = load_job(HERE / "models.py")
warm: set[tuple[str, str, str, int | None]] = set()


def strategy_of(strategy: str, options: dict[str, Any] | None) -> Any:
    return STRATEGIES[strategy](**(options or {})) if strategy in STRATEGIES else make_strategy(strategy)


def batch_of(module: Any, size: int | None) -> Any:
    """A batch for the model, of its usual size where none is given."""
    return module.batch() if size is None else module.batch(size)


class Measure(Callback):
    """The most that is allocated in a step, and parts of it."""

    def __init__(self) -> None:
        gc.collect()
        self.before = heap.allocated_bytes()
        self.found: dict[str, int] = {}

    def on_step_start(self, trainer, batches):
        if trainer.global_step == STEP - 1:
            self.watch = heap.Watch()
            self.watch.__enter__()

    def on_before_optimizer_step(self, trainer, optimizer):
        if trainer.global_step == STEP - 1:
            gradients = [p.grad for p in trainer.module.parameters()]
            self.found["gradients"] = held(grad for grad in gradients if grad is not None)

    def on_step_end(self, trainer, outputs):
        if trainer.global_step != STEP:
            return
        self.watch.__exit__(None, None, None)
        self.found["peak"] = self.watch.most - self.before
        self.found["parameters"] = held(trainer.module.parameters())
        engine = getattr(trainer.strategy, "_engine", None)
        sharded = engine is not None and trainer.strategy.stage
        optimizer = engine.optimizer.optimizer if sharded else trainer._fit.optimization.optimizers[0]
        values = [value for state in optimizer.state.values() for value in state.values()]
        self.found["optimizer"] = held(v for v in values if isinstance(v, torch.Tensor) and v.ndim)


def held(tensors: Any) -> int:
    """The bytes of their storages, each once."""
    storages = {}
    for tensor in tensors:
        storage = local_part(tensor).untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def measure(
    devices: int,
    strategy: str,
    model: str,
    options: Any = None,
    precision: str = "32",
    size: int | None = None,
    steps: int = STEP,
    **more: Any,
) -> dict[str, int]:
    torch.set_num_threads(1)
    # What a first run imports and keeps is no part of a later one. For bfloat16 oneDNN generates and keeps
    # code for each shape, some MB in all; one step has all of them.
    first = (strategy, "tiny" if precision == "32" else model, precision, size)
    if first not in warm:
        warm.add(first)
        measure(devices, strategy, first[1], None, precision, size, 1 if size else STEP)
    torch.manual_seed(0)
    callback = Measure()
    module = models.MODELS[model]()
    trainer = quiet(
        strategy=strategy_of(strategy, options),
        devices=devices,
        precision=precision,
        max_steps=steps,
        callbacks=[callback],
        record=False,
        run_dir=None,
        **more,
    )
    trainer.fit(module, [batch_of(module, size)] * devices * steps * more.get("accumulate", 1))
    return callback.found


def on_rank(folder: Path, **case: Any) -> dict[str, int]:
    return measure(2, **case)


if __name__ == "__main__":
    found = {name: measure(1, **case) for name, case in json.loads(sys.argv[2]).items()}
    Path(sys.argv[1], "found.json").write_text(json.dumps(found))
