"""Lets a loss, a gradient or a sample be other than finite on one of two ranks, in many fits of one pair.

python nonfinite_job.py FOLDER CASES   (CASES: a file of JSON, a list of arguments of ``case``)

Each rank gets its place as from torchrun, and writes FOLDER/found-RANK.jsonl, a line for each case.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint

SIZE, STEPS = 3, 5
BAD_SAMPLE = 28
SECONDS = 120


class Numbers(Dataset):
    """Each sample with its index; one may be NaN, and those of some steps may be left out."""

    def __init__(self, count: int, has_nan: bool, left_out: set[int]) -> None:
        draw = torch.Generator().manual_seed(1)
        self.values = torch.randn(count, 2, generator=draw)
        if has_nan:
            self.values[BAD_SAMPLE, 1] = math.nan
        self.indices = [index for index in range(count) if index not in left_out]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, item: int) -> Any:
        index = self.indices[item]
        return index, self.values[index]


class Net(TrainModule):
    """Its numbers stop being finite at one place.

    Args:
        kind: What: ``"loss nan"``, ``"loss inf"``, ``"gradient nan"``, ``"gradient inf"`` or ``"data"``.
        steps, rank, micro_batch: Where.
    """

    def __init__(self, kind: str, steps: list[int], rank: int, micro_batch: int, weighs: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(2, 8), nn.Linear(8, 1)
        self.kind, self.steps, self.rank, self.micro_batch, self.weighs = (
            kind,
            steps,
            rank,
            micro_batch,
            weighs,
        )
        self.seen: list[int] = []

    def training_step(self, batch, batch_idx):
        indices, values = batch
        trainer = self.trainer
        out = self.last(torch.tanh(self.first(values)))
        loss = out.square().mean()
        here = (trainer.rank, batch_idx % trainer.settings.accumulate) == (self.rank, self.micro_batch)
        if self.kind == "data":
            here = here and BAD_SAMPLE in indices.tolist()
        if here and self.global_step + 1 in self.steps:
            self.seen = indices.tolist()
            loss = self.worsened(loss, out)
        return {"loss": loss, "weight": 1.0 + float(len(values))} if self.weighs else loss

    def worsened(self, loss, out):
        nothing = (out - out.detach())[0].sum()  # its value is 0, and it has a gradient
        if self.kind == "loss nan":
            return loss * math.nan
        if self.kind == "loss inf":
            return loss + math.inf  # its gradients are finite
        if self.kind == "gradient nan":
            return loss + nothing.square().sqrt()
        if self.kind == "gradient inf":
            return loss + nothing.sqrt()
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Manual(Net):
    """Two optimizers; the second one's loss is the one that is not finite."""

    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            loss = super().training_step(batch, batch_idx) if optimizer is self.optimizers()[1] else None
            if loss is None:
                loss = self.last(torch.tanh(self.first(batch[1]))).square().mean()
            self.manual_backward(loss)
            optimizer.step()
            for other in self.optimizers():
                other.zero_grad()

    def configure_optimizers(self):
        return [torch.optim.Adam(part.parameters(), lr=0.05) for part in (self.first, self.last)]


class Weights(Callback):
    """All weights before each step, and when the run has failed."""

    def __init__(self) -> None:
        self.before: list[dict[str, str]] = []
        self.after: dict[str, str] = {}
        self.failures = 0

    def on_step_start(self, trainer):
        self.before.append(weights(trainer))

    def on_exception(self, trainer, error):
        self.failures += 1
        self.after = weights(trainer)

    def on_fit_end(self, trainer):
        self.after = weights(trainer)


def weights(trainer: Trainer) -> dict[str, str]:
    """What this rank has of each weight."""
    found = {}
    for name, parameter in trainer.module.named_parameters():
        value = getattr(parameter, "ds_tensor", parameter).detach()
        value = value.to_local() if hasattr(value, "to_local") else value
        found[name] = hashlib.sha256(value.float().contiguous().numpy().tobytes()).hexdigest()[:16]
    return found


def case(
    folder: Path,
    name: str,
    kind: str,
    strategy: str,
    rank: int = 1,
    steps: list[int] | None = None,
    micro_batch: int = 0,
    accumulate: int = 1,
    left_out: list[int] | None = None,
    max_steps: int = STEPS,
    resume: str | None = None,
    weighs: bool = False,
    manual: bool = False,
    run: str = "",
    **settings: Any,
) -> dict[str, Any]:
    """One fit, and what came of it on this rank.

    Args:
        left_out: Steps whose samples are not in the data.
        run: The name of its folder, where it is not its own.
    """
    whole = SIZE * 2 * accumulate
    out = {i for step in left_out or [] for i in range((step - 1) * whole, step * whole)}
    watch = Weights()
    trainer = Trainer(
        run_dir=folder / (run or name), name="n", accelerator="cpu", devices=2, strategy=strategy,
        progress=False, loggers=False, max_steps=max_steps, accumulate=accumulate,
        callbacks=[watch, Checkpoint(1, keep=None)], **settings,
    )  # fmt: skip
    module = (Manual if manual else Net)(kind, steps or [3], rank, micro_batch, weighs)
    data = Numbers(whole * STEPS, kind == "data", out)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    error = None
    try:
        trainer.fit(module, DataLoader(data, SIZE), resume=resume)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    faulthandler.cancel_dump_traceback_later()
    rates = [o.param_groups[0]["lr"] for o in trainer.optimizers]
    return {
        "name": name, "error": error, "failures": watch.failures, "before": watch.before,
        "after": watch.after, "step": trainer.global_step, "skipped": trainer.counters.skipped_steps,
        "seen": module.seen, "rates": rates, "run": str(trainer.folder),
    }  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    with (folder / f"found-{rank}.jsonl").open("w", buffering=1) as found:
        for arguments in json.loads(Path(sys.argv[2]).read_text()):
            one = case(folder, **arguments)
            found.write(json.dumps(one) + "\n")
