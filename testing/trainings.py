"""Trainings of a small model: what each rank of a check does, and one device to compare with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from ..callbacks import Callback, Checkpoint, TrainerView
from ..errors import PacelineError
from ..strategies import Strategy
from ..trainer.checkpoint.export import export_checkpoint
from ..trainer.module import TrainModule
from ..trainer.trainer import Trainer

_WIDTH, _TARGETS = 7, 3  # odd numbers: no two ranks share them evenly
_STEPS = 6
WEIGHTS = "model.safetensors"
"""The file of an export."""
MIDDLE = 2
"""The step whose checkpoint is resumed, in the middle of an epoch."""


class Net(TrainModule):
    """Blocks that can be sharded, an optimizer with state, and a schedule.

    Args:
        fails_on: The rank whose loss is NaN in step 2; None: no rank's is.
    """

    def __init__(self, fails_on: int | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(5, _WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(2))
        self.last = nn.Linear(_WIDTH, _TARGETS)

    def forward(self, x: Tensor) -> Tensor:
        """Predictions of shape (samples, 3) for inputs of shape (samples, 5)."""
        hidden = self.first(x)
        for block in self.blocks:
            hidden = hidden + torch.tanh(block(hidden))
        found: Tensor = self.last(hidden)
        return found

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = nn.functional.mse_loss(self(batch[0]), batch[1])
        fails = batch_idx == 1 and self.trainer.rank == self.hparams["fails_on"]
        return loss * math.nan if fails else loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("samples", float(len(batch[0])), reduce="sum")
        self.log("target", batch[1].mean())
        self.log("loss", nn.functional.mse_loss(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02, eps=1e-3)
        schedule = LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@dataclass(frozen=True)
class Layout:
    """Where trainings compute and what their steps have.

    Args:
        folder: Takes a folder for each run.
        strategy: Makes the strategy, or its name.
        devices: How many ranks it computes on.
        ranks: How many the strategy under check computes on; the data and global batches follow from it.
        precision: ``"64"`` or ``"32"``.
        accelerator: Where it computes.
    """

    folder: Path
    strategy: Callable[[], Strategy] | str
    devices: int
    ranks: int
    precision: str
    accelerator: str = "cpu"

    @property
    def validation_samples(self) -> int:
        """So many that the ranks cannot share them evenly."""
        return 3 * self.ranks + 1

    def validation_data(self) -> TensorDataset:
        """The samples that are validated on."""
        return self._data(self.validation_samples, seed=2)

    def samples(self) -> TensorDataset:
        """What is trained on: three steps of an epoch."""
        return self._data(12 * self.ranks, seed=1)

    def checkpoint(self, name: str, step: int = _STEPS) -> Path:
        """The checkpoint of a training after this step."""
        return self.folder / name / "1" / "checkpoints" / f"step-{step:08}"

    def weights(self, name: str, step: int = _STEPS) -> dict[str, Tensor]:
        """The weights of that checkpoint, in the dtype they were stored in."""
        exported = export_checkpoint(
            self.checkpoint(name, step), self.folder / f"{name}-{step}-weights", None
        )
        return load_file(exported / WEIGHTS)

    def train(
        self,
        name: str,
        *,
        uneven: bool = False,
        saves: bool = False,
        steps: int = _STEPS,
        every: int = MIDDLE,
        resume: Path | None = None,
        fails_on: int | None = None,
        callbacks: Sequence[Callback] = (),
        **arguments: Any,
    ) -> Trainer:
        """Train six steps in two epochs, and validate after each epoch.

        Args:
            name: The name of the run.
            uneven: Several micro-batches in a step, and a last step that ranks cannot share evenly.
            saves: Write checkpoints.
            steps: After how many it ends; an epoch has three.
            every: Steps between two checkpoints.
            resume: The checkpoint to begin with.
            fails_on: The rank whose loss is NaN in step 2.
            callbacks: More callbacks.
            **arguments: More of the Trainer's.
        """
        step = 4 * self.ranks
        trainer = Trainer(
            strategy=self.strategy if isinstance(self.strategy, str) else self.strategy(),
            devices=self.devices,
            accelerator=self.accelerator,
            precision=self.precision,
            max_steps=steps,
            global_batch_size=step,
            log_every=1,
            callbacks=[*callbacks, *([Checkpoint(every=every, keep=None)] if saves else [])],
            checkpoint=False,
            loggers=["-tensorboard", "-curves"],
            progress=False,
            run_dir=self.folder,
            name=name,
            **arguments,
        )
        torch.manual_seed(3)
        data = self._data(2 * step + step // 2 + 1 if uneven else 3 * step, seed=1)
        loader = DataLoader(data, batch_size=2 if uneven else step // self.devices, shuffle=True)
        trainer.fit(Net(fails_on), loader, DataLoader(self.validation_data(), batch_size=2), resume=resume)
        return trainer

    def _data(self, samples: int, seed: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(samples, 5, generator=generator, dtype=torch.float64)
        x = x.to(torch.float64 if self.precision == "64" else torch.float32)
        return TensorDataset(x, x[:, :_TARGETS].sin())


class _Verbs(Callback):
    """Calls each collective once and keeps which results are not right."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def on_fit_start(self, trainer: TrainerView) -> None:
        for call, found, expected in _verbs(trainer):
            if found != expected:
                self.wrong.append(f"{call} gives {found} on rank {trainer.rank}, and {expected} is right")
        trainer.stop("the collectives were called")


def _verbs(trainer: TrainerView) -> Iterator[tuple[str, Any, Any]]:
    """Each call in words, its result, and the right one."""
    together, rank = trainer.strategy.collectives, trainer.rank
    ranks = list(range(trainer.world_size))
    values = torch.tensor([rank + 1.0, -rank], dtype=torch.float64, device=trainer.strategy.device)
    of_all = [[r + 1.0 for r in ranks], [-float(r) for r in ranks]]
    for op, reduce in (("sum", sum), ("min", min), ("max", max)):
        right = [float(reduce(column)) for column in of_all]
        yield f"all_reduce(op={op!r})", together.all_reduce(values, op).tolist(), right
        yield f"all_reduce_async(op={op!r})", together.all_reduce_async(values, op)().tolist(), right
    gathered = [tensor.tolist() for tensor in together.all_gather(values)]
    yield "all_gather of tensors", gathered, [list(row) for row in zip(*of_all, strict=True)]
    yield "all_gather of objects", together.all_gather({"rank": rank}), [{"rank": r} for r in ranks]
    for source in ranks:
        found = together.broadcast({"from": rank}, source)
        yield f"broadcast(source={source})", found, {"from": source}
    together.barrier()


def collectives(layout: Layout, other: Layout) -> list[str]:
    """The collectives, in a run that ends before its first step."""
    verbs = _Verbs()
    layout.train("collectives", callbacks=[verbs])
    return verbs.wrong


def training(layout: Layout, other: Layout) -> list[str]:
    """A training with one micro-batch in a step, and validation."""
    layout.train("training")
    return []


def accumulation(layout: Layout, other: Layout) -> list[str]:
    """Several micro-batches in a step, and an uneven last step."""
    layout.train("accumulation", uneven=True)
    return []


def clipping(layout: Layout, other: Layout) -> list[str]:
    """Gradients clipped by their norm, and by value."""
    layout.train("clipping", clip_grad_norm=0.05)
    layout.train("clipping-by-value", clip_grad_value=0.01)
    return []


def checkpoint(layout: Layout, other: Layout) -> list[str]:
    """The training with checkpoints; again from one of them, and from one of the other layout."""
    layout.train("saved", saves=True)
    layout.train("resumed", saves=True, resume=layout.checkpoint("saved", MIDDLE))
    layout.train("resumed-from-other", resume=other.checkpoint("saved", MIDDLE))
    return []


def export(layout: Layout, other: Layout) -> list[str]:
    """An export after a training."""
    layout.train("export", saves=True).export(layout.folder / "exported")
    return []


def nonfinite(layout: Layout, other: Layout) -> list[str]:
    """A loss that is NaN on the last rank alone."""
    ended = "trained to its end"
    try:
        layout.train("nonfinite", fails_on=layout.ranks - 1)
    except PacelineError as error:
        if "finite" in str(error) or "NaN" in str(error):
            return []
        ended = f"ended with {type(error).__name__}: {error}"
    except Exception as error:  # of a collective whose other ranks have ended, say
        ended = f"ended with {type(error).__name__}: {error}"
    rank = layout.ranks - 1
    return [f"where a loss of rank {rank} is NaN, each rank is to raise an error that says so: one {ended}"]


SECTIONS = (collectives, training, accumulation, clipping, checkpoint, export, nonfinite)
"""In their order; each returns what is wrong as far as one rank can tell."""
COMPARED = (training, accumulation, clipping)
"""What one device trains, to compare with."""
