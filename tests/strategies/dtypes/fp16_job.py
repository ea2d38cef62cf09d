"""float16 with a loss scale, on two ranks: an overflow that is planted on one of them, and what follows."""

from __future__ import annotations

import faulthandler
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Run, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint
from paceline.strategies import HSDP, AutocastFP16

SECONDS = 120
GLOBAL, SAMPLES = 8, 48  # six steps in an epoch


class Net(TrainModule):
    """In the given steps one rank has infinite gradients: of all blocks, or of one row of a weight."""

    def __init__(self, steps: list[int], rank: int, row: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.steps, self.rank, self.row = steps, rank, row
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(6, 3)

    def training_step(self, batch: Any) -> Any:
        x = batch[0]
        for block in self.blocks:
            x = block(x)
        planted = self.global_step + 1 in self.steps and self.trainer.rank == self.rank
        if planted and not self.row:
            x.register_hook(lambda gradient: gradient * float("inf"))
        loss = F.cross_entropy(self.head(x), batch[1])
        if self.row:  # under FSDP one rank alone has this row
            last = F.linear(x.detach(), self.head.weight)[:, -1]
            if planted:
                last.register_hook(lambda gradient: gradient + float("inf"))
            loss = loss + 0 * last.mean()
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Watch(Callback):
    """What there is after each step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.norms: list[float] = []

    def on_step_end(self, trainer: Any) -> None:
        weights = trainer.strategy.weights.full_tensors(trainer.module)
        whole = {n: w for n, w in weights.items() if not w.is_meta}
        self.steps.append(
            {
                "scale": trainer.strategy.precision.loss_scale,
                "skipped": trainer.counters.skipped_steps,
                "rate": trainer.optimizers[0].param_groups[0]["lr"],
                "weights": sorted((n, w.double().sum().item()) for n, w in whole.items()),
            }
        )


class Reader(Watch):
    """Reads the gradients too; without such a hook nothing unscales them before the update."""

    def on_before_optimizer_step(self, trainer: Any, optimizer: Any) -> None:
        found = trainer.strategy.weights.full_gradients(trainer.module).values()
        self.norms.append(torch.stack([g.double().square().sum() for g in found]).sum().sqrt().item())


def fit(
    folder: Path, strategy: str, steps: list[int], rank: int, watch: Watch, devices: int = 2, **more: Any
) -> tuple[Any, str | None]:
    settings: dict[str, Any] = {"init_scale": 2.0**12, "max_consecutive_skips": more.pop("most", 20)}
    resume, row = more.pop("resume", None), more.pop("row", False)
    trainer = Trainer(
        strategy=HSDP(replicate=2) if strategy == "hsdp" else strategy,
        accelerator="cpu",
        devices=devices,
        precision=AutocastFP16(growth_interval=3, **settings) if more.pop("fp16", True) else "32",
        global_batch_size=GLOBAL,
        callbacks=[watch, Checkpoint(every=100)],
        progress=False,
        loggers=["-tensorboard", "-curves"],
        log_every=1,
        run_dir=folder,
        name="n",
        **more,
    )
    draw = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(SAMPLES, 6, generator=draw), torch.arange(SAMPLES) % 3)
    try:
        trainer.fit(Net(steps, rank, row), DataLoader(data, GLOBAL // devices), resume=resume)
    except PacelineError as error:
        return trainer, str(error)
    return trainer, None


def planted(folder: Path, strategy: str, rank: int, clip: bool, reads: bool, row: bool) -> dict[str, Any]:
    """An overflow in step 3 on one rank."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    watch = Reader() if reads else Watch()
    norm = 0.5 if clip else None
    more = {"row": True, "nonfinite": "ignore"} if row else {}
    trainer, error = fit(folder, strategy, [3], rank, watch, clip_grad_norm=norm, **more)
    faulthandler.cancel_dump_traceback_later()
    return {
        "steps": watch.steps,
        "norms": watch.norms,
        "error": error,
        "rows": Run(trainer.folder).rows,
        "log": (trainer.folder / "log.txt").read_text() if trainer.rank == 0 else "",
    }


class Skip(Watch):
    """Wants no update in step 2."""

    def on_before_optimizer_step(self, trainer: Any, optimizer: Any) -> None:
        if trainer.global_step == 1:
            trainer.loop.skip_update()


def skipped(folder: Path, strategy: str) -> dict[str, Any]:
    """A hook skips an update whose gradients are finite."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    watch = Skip()
    _, error = fit(folder, strategy, [], 0, watch)
    faulthandler.cancel_dump_traceback_later()
    return {"error": error, "steps": watch.steps}


def given_up(folder: Path, strategy: str) -> dict[str, Any]:
    """Overflows in every step from the second on."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    watch = Watch()
    trainer, error = fit(folder, strategy, [2, 3, 4, 5, 6], 1, watch, most=3)
    faulthandler.cancel_dump_traceback_later()
    return {"error": error, "steps": watch.steps, "global_step": trainer.global_step}


def resumed(folder: Path, strategy: str) -> dict[str, Any]:
    """A run that is stopped after a skipped update and resumed, and one that is not stopped."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    whole, first, second = Watch(), Watch(), Watch()
    fit(folder / "whole", strategy, [2, 3], 1, whole)
    fit(folder / "parts", strategy, [2, 3], 1, first, max_steps=3)
    fit(folder / "parts", strategy, [2, 3], 1, second, resume="latest")
    faulthandler.cancel_dump_traceback_later()
    return {"whole": whole.steps, "parts": first.steps + second.steps}
