"""The Trainer of most tests."""

from __future__ import annotations

from typing import Any

from paceline import Trainer, TrainModule


def quiet(**settings: Any) -> Trainer:
    """On the CPU; it prints nothing, logs nothing and saves nothing, unless ``settings`` say so."""
    off = {"accelerator": "cpu", "progress": False, "loggers": False, "checkpoint": False}
    return Trainer(**off | settings)


def fitted(module: TrainModule, *data: Any, **settings: Any) -> Trainer:
    """A quiet Trainer with these settings that has trained the module with these data."""
    trainer = quiet(**settings)
    trainer.fit(module, *data)
    return trainer
