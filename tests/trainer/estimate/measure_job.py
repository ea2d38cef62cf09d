"""Measures what ranks allocate in a step, by torch's profiler, for each strategy and model.

python measure_job.py DEVICES FOLDER STRATEGY:MODEL[:PRECISION]...  -> FOLDER/RANK.json
"""

from __future__ import annotations

import gc
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch

from paceline import Trainer
from paceline.callbacks import Callback
from paceline.strategies.sharding import local_part

sys.path.insert(0, str(Path(__file__).parent))
import heap

STEP = 3
MARK = "the measured step"


def load_models() -> dict[str, Any]:
    place = Path(__file__).with_name("models.py")
    spec = importlib.util.spec_from_file_location("estimated_models", place)
    module = importlib.util.module_from_spec(spec)
    sys.modules["estimated_models"] = module
    spec.loader.exec_module(module)
    return module.MODELS


class Measured(Callback):
    """Marks a step for the profiler, and counts the storages that can be told apart."""

    def __init__(self) -> None:
        self.mark: Any = None
        self.parts: dict[str, int] = {}
        self.before = heap.mapped_bytes()

    def on_step_start(self, trainer, batches):
        if trainer.global_step == STEP - 1:
            self.watch = heap.Watch()
            self.parts["base"] = heap.mapped_bytes()
            self.watch.__enter__()

    def on_step_end(self, trainer, outputs):
        if trainer.global_step != STEP:
            return
        self.watch.__exit__(None, None, None)
        self.parts["heap"] = self.watch.most - self.before
        self.parts["base"] -= self.before
        module = trainer.module
        self.parts["parameters"] = held(p.detach() for p in module.parameters())
        engine = getattr(trainer.strategy, "_engine", None)
        optimizer = trainer._fit.optimization.optimizers[0]
        if engine is not None and trainer.strategy.stage:
            optimizer = engine.optimizer.optimizer
        values = [v for state in optimizer.state.values() for v in state.values()]
        self.parts["optimizer"] = held(v for v in values if isinstance(v, torch.Tensor) and v.ndim)


def held(tensors: Any) -> int:
    storages = {}
    for tensor in tensors:
        storage = local_part(tensor).untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def allocated(trace: Path) -> list[tuple[float, int]]:
    """Bytes over time within the step that is marked."""
    events = json.loads(trace.read_text())["traceEvents"]
    (span,) = [e for e in events if e.get("name") == MARK and e.get("cat") == "user_annotation"]
    start, end = span["ts"], span["ts"] + span["dur"]
    memory = sorted(
        (e["ts"], e["args"]["Total Allocated"], e["args"]["Bytes"])
        for e in events
        if e["name"] == "[memory]"
    )
    before = memory[0][1] - memory[0][2]  # torch's count goes on from one profile to the next
    return [(ts, size - before) for ts, size, _ in memory if start <= ts <= end]


def measure(name: str, folder: Path, devices: int) -> dict[str, Any]:
    strategy, model, *rest = name.split(":")
    gc.collect()
    watch = Measured()
    if True:
        torch.manual_seed(0)
        module = load_models()[model]()
        batch = type(module).batch()
        trainer = Trainer(
            strategy=strategy,
            accelerator="cpu",
            devices=devices,
            precision=rest[0] if rest else "32",
            max_steps=STEP + 1,
            callbacks=[watch],
            progress=False,
            checkpoint=False,
            loggers=False,
            run_dir=None,
            record=False,
        )
        trainer.fit(module, [batch] * devices * (STEP + 1))
    return watch.parts


if __name__ == "__main__":
    torch.set_num_threads(1)
    heap.count_large_blocks()
    found = {}
    for name in [a for a in sys.argv[3:] if a != "--keep"]:
        found[name] = measure(name, Path(sys.argv[2]), int(sys.argv[1]))
        print(name, found[name], flush=True)
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    Path(sys.argv[2], f"{rank}.json").write_text(json.dumps(found))
