"""What each rank does for the checks of a strategy; runs in the ranks."""

from __future__ import annotations

import platform
import time
from typing import Any

from ..callbacks import Callback, TrainerView
from ..testing.trainings import Layout, collectives

STEPS = 2
"""Of the training that is compared with one device; a checkpoint is written after each."""


class _Meeting(Callback):
    """Has all ranks say who they are, in a run that ends before its first step."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def on_fit_start(self, trainer: TrainerView) -> None:
        trainer.ranks.barrier()
        self.found = {"time": time.time(), "world_size": trainer.world_size, "rank": trainer.rank}
        self.found |= {"device": str(trainer.strategy.device), "host": platform.node()}
        self.found["members"] = trainer.ranks.all_gather(trainer.rank)
        trainer.stop("the ranks have met")


class _Taken(Callback):
    """Keeps which samples this rank takes in each step; no weight moves, which other checks look at."""

    def __init__(self, layout: Layout) -> None:
        self.inputs = layout.samples().tensors[0]
        self.steps: list[list[int]] = []

    def on_step_start(self, trainer: TrainerView, batches: list[Any]) -> None:
        taken = [
            int((self.inputs == row).all(1).nonzero()[0, 0]) for batch in batches for row in batch[0].cpu()
        ]
        self.steps.append(taken)
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = 0.0


def world(layout: Layout, other: Layout) -> dict[str, Any]:
    """The ranks meet; who this one is, and who the others are."""
    meeting = _Meeting()
    layout.train("world", callbacks=[meeting])
    return meeting.found


def data_order(layout: Layout, other: Layout) -> list[list[int]]:
    """The samples of each step of an epoch, as this rank took them."""
    taken = _Taken(layout)
    layout.train("order", steps=3, callbacks=[taken])
    return taken.steps


def training_step(layout: Layout, other: Layout) -> None:
    """Some steps, with a checkpoint after each."""
    layout.train("saved", saves=True, steps=STEPS, every=1)


def checkpoint(layout: Layout, other: Layout) -> None:
    """The last step again, from the checkpoint of one device."""
    layout.train("read", saves=True, steps=STEPS, every=1, resume=other.checkpoint("saved", 1))


SECTIONS = {
    "world": world,
    "collectives": collectives,
    "data order": data_order,
    "training step": training_step,
    "checkpoint": checkpoint,
}
"""In their order; each takes the layout of the strategy and that of one device."""
