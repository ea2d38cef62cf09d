"""Trains a small model with and without torch.compile, on one device or on several ranks."""

from __future__ import annotations

import faulthandler
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import Run, Trainer, TrainModule
from paceline.callbacks import Checkpoint

SECONDS = 400  # for a case: up to fifteen runs
SETTINGS = {"whole": {"backend": "aot_eager"}, "blocks": {"backend": "aot_eager", "blocks": True}}
STEPS, STOP = 6, 4  # three steps in an epoch


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x: Any) -> Any:
        return x + self.last(torch.tanh(self.first(self.norm(x))))


class Net(TrainModule):
    """Logs inside and outside of what is compiled, as a whole or by blocks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(6, 3)
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        self.log("size", x.detach().square().mean())
        return self.head(x)

    def training_step(self, batch: Any) -> Any:
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("twice", 2 * loss.detach())
        self.steps += 1
        return loss

    def validation_step(self, batch: Any) -> None:
        self.log("loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01, eps=1e-3)


def train(
    folder: Path,
    name: str,
    setting: Any,
    *,
    strategy: str,
    precision: str,
    devices: int,
    steps: int = STEPS,
    samples: int = 44,
    resume: str | Path | None = None,
) -> dict[str, Any]:
    """What a run logged, its newest checkpoint, and how often it said that something was compiled."""
    torch.compiler.reset()  # what the run before has compiled
    draw = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(samples, 6, generator=draw), torch.arange(samples) % 3)
    trainer = Trainer(
        strategy=strategy, accelerator="cpu", devices=devices, progress=False, max_steps=steps,
        loggers=["-tensorboard", "-curves"], precision=precision, global_batch_size=16,
        log_every=1, compile=setting, run_dir=folder, name=name,
        callbacks=[Checkpoint(every=STOP, keep=None)],
    )  # fmt: skip
    size = 8 // devices  # one for both: each is compiled for
    loader = DataLoader(data, size, shuffle=True)
    run = trainer.fit(Net(), loader, DataLoader(data, size), resume=resume)
    rows = [
        {k: v for k, v in row.items() if not k.startswith(("perf/", "time"))}
        for row in Run(run.folder).rows
    ]
    log = (run.folder / "log.txt").read_text() if trainer.rank == 0 else ""
    compiled = [line for line in log.splitlines() if ": compiled " in line]
    return {"rows": rows, "compiled": compiled, "latest": str(trainer.run.latest)}


def runs(
    folder: Path, settings: list[str], *, stops: bool = False, devices: int = 2, **what: Any
) -> dict[str, Any]:
    """The run without torch.compile, and with each of these settings.

    Args:
        stops: Also train a part of the run and resume it, and resume each from the other's middle.
        **what: The strategy and the precision; ``samples=48`` for batches of one size.
    """
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    what["devices"] = devices
    found = {"plain": train(folder, "plain", False, **what)}
    for name in settings:
        found[name] = train(folder, name, SETTINGS[name], **what)
        if stops:
            cut = f"{name}-both"
            train(folder, cut, SETTINGS[name], steps=STOP, **what)
            found[cut] = train(folder, cut, SETTINGS[name], resume="latest", **what)
            for way, begun, then in (("first", name, False), ("then", "plain", SETTINGS[name])):
                middle = folder / begun / f"1/checkpoints/step-{STOP:08d}"
                found[f"{name}-{way}"] = train(folder, f"{name}-{way}", then, resume=middle, **what)
    faulthandler.cancel_dump_traceback_later()
    return found
