"""The names of built-in classes in a config: callbacks, loggers, strategies, precisions, schedules."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from .. import callbacks, optimizers, schedules, strategies
from ..callbacks import Callback, Logger
from ..strategies import Distributed, Precision, Strategy
from ..trainer.config.built_in import built_in
from ..trainer.datamodule import DataModule
from .classes import FUNCTION, Slot
from .importing import OfLibrary
from .kinds import is_called, is_data, is_dataset, is_schedule

_OPTIMIZERS = {
    **{
        name: OfLibrary(f"torchao.optim:{name}", "'paceline[torchao]'")
        for name in ("AdamW8bit", "AdamW4bit", "AdamWFp8")
    },
    **{name: OfLibrary(f"pytorch_optimizer:{name}", "pytorch_optimizer") for name in ("Lion", "Prodigy")},
}
"""Optimizers of other libraries that need no import path."""


@cache
def slots() -> dict[str, Slot]:
    """What each argument of the Trainer, and each part of an experiment, may be."""
    public = [getattr(strategies, name) for name in strategies.__all__]
    precisions = {one.__name__: one for one in public if _is(one, Precision)}
    kinds = {one.__name__: one for one in public if _is(one, Strategy) and one is not Distributed}
    return {
        "callbacks": Slot("a callback", Callback, names=built_in("callbacks")),
        "loggers": Slot("a logger", Logger, names=built_in("loggers")),
        "profile": Slot("a Profiler", callbacks.Profiler, names={"Profiler": callbacks.Profiler}),
        "strategy": Slot("a strategy", Strategy, names=kinds),
        "precision": Slot("a precision", Precision, names=precisions),
        "module": Slot("a module", nn.Module),
        "model": Slot("a model", nn.Module),
        "optimizer": Slot(
            "an optimizer",
            torch.optim.Optimizer,
            (torch.optim, optimizers),
            _OPTIMIZERS,
            provided=1,
        ),
        "scheduler": Slot(
            "a scheduler",
            torch.optim.lr_scheduler.LRScheduler,
            (torch.optim.lr_scheduler,),
            schedules.SCHEDULES,
            provided=1,
            serves=is_schedule,
        ),
        "loss": Slot("a loss", None, (nn.functional,), _losses(), serves=is_called, is_function=True),
        "metrics": replace(FUNCTION, what="a metric", serves=is_called),
        "weight": replace(FUNCTION, what="a function of the batch", serves=is_called),
        "data": Slot("a DataModule, datasets or dataloaders", DataModule, serves=is_data),
        "dataset": Slot("a dataset or dataloader", Dataset, serves=is_dataset),
    }


def provided_to(slot: Slot, target: Any) -> int:
    """How many arguments a class gets that no config has: schedules of ours get no optimizer."""
    is_ours = isinstance(target, type) and issubclass(target, schedules.RateSchedule)
    return 0 if is_ours else slot.provided


def _is(one: Any, base: type) -> bool:
    return isinstance(one, type) and issubclass(one, base) and one is not base


def _losses() -> dict[str, Any]:
    return {name: one for name, one in vars(nn).items() if name.endswith("Loss")}
