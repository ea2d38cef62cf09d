"""A short fit of a copy, with the arguments of the user's Trainer; nothing is written or kept."""

from __future__ import annotations

import copy
import tempfile
from typing import Any

from ...callbacks import Callback
from ...trainer.rng import untouched
from ...trainer.trainer import Trainer
from .subject import Subject

ALONE: dict[str, Any] = {
    "devices": 1,
    "num_nodes": 1,
    "max_restarts": 0,
    "timeouts": False,
    "strategy": "single",
    "batch_size": None,
}
QUIET = dict.fromkeys(("loggers", "checkpoint", "progress", "record", "profile", "compile"), False)
_SECONDS = 6


def given_to(trainer: Trainer) -> dict[str, Any]:
    """The arguments of a Trainer, by name."""
    settings = trainer.settings
    return {name: getattr(settings, name) for name in type(settings).model_fields}


def short_fit(subject: Subject, module: Any, callbacks: list[Callback], steps: int) -> None:
    """Train a module for some steps, without validation.

    Args:
        subject: Its Trainer's arguments and its data are those of the fit.
        module: A copy that may be trained.
        callbacks: They alone, none of the user's.
        steps: How many, where the time allows.
    """
    short = {"max_time": f"{_SECONDS}s", "max_steps": steps, "limit_val_batches": 0, "validate_every": None}
    short |= {"nonfinite": "ignore", "sanity_val_batches": 0, "callbacks": callbacks}
    training, validation, datamodule = subject.data
    with tempfile.TemporaryDirectory() as folder, untouched(subject.module.device):
        trial = Trainer(**given_to(subject.trainer) | QUIET | ALONE | short | {"run_dir": folder})
        trial.fit(module, training, validation, datamodule=copy.copy(datamodule))
