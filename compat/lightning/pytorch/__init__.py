"""In the place of ``lightning.pytorch`` and ``pytorch_lightning``."""

from __future__ import annotations

from typing import Any

from ..translation.refusals import refuse_import
from . import callbacks, core, loggers, strategies, trainer, utilities
from .callbacks import Callback
from .core import LightningDataModule, LightningModule
from .trainer import Trainer, seed_everything
from .utilities import rank_zero_only

__all__ = [
    "Callback",
    "LightningDataModule",
    "LightningModule",
    "Trainer",
    "callbacks",
    "core",
    "loggers",
    "rank_zero_only",
    "seed_everything",
    "strategies",
    "trainer",
    "utilities",
]

HERE = {
    "accelerators": "Trainer(accelerator=...)",
    "demos": "a model and data of your own",
}


def __getattr__(name: str) -> Any:
    refuse_import(__name__, name, HERE)
