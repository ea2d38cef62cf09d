"""In the place of ``lightning.pytorch`` and ``pytorch_lightning``."""

from __future__ import annotations

import logging
from typing import Any

from ..translation import LIGHTNING_VERSION
from ..translation.refusals import refuse_import
from . import (
    accelerators,
    callbacks,
    core,
    loggers,
    plugins,
    profilers,
    strategies,
    trainer,
    tuner,
    utilities,
)
from .callbacks import Callback
from .core import LightningDataModule, LightningModule
from .trainer import Trainer, seed_everything
from .utilities import rank_zero_only

__all__ = [
    "Callback",
    "LightningDataModule",
    "LightningModule",
    "Trainer",
    "__version__",
    "accelerators",
    "callbacks",
    "core",
    "loggers",
    "plugins",
    "profilers",
    "rank_zero_only",
    "seed_everything",
    "strategies",
    "trainer",
    "tuner",
    "utilities",
]

__version__ = LIGHTNING_VERSION

_logger = logging.getLogger("paceline.compat.lightning")


def __getattr__(name: str) -> Any:
    return refuse_import(__name__, name, {})
