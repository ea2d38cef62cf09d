"""Loggers under Lightning's names; each writes through one of ours."""

from __future__ import annotations

from typing import Any

from ...translation.refusals import refuse_import
from .csv_logs import CSVLogger
from .logger import Logger
from .mlflow import MLFlowLogger
from .tensorboard import TensorBoardLogger
from .wandb import WandbLogger

__all__ = ["CSVLogger", "Logger", "MLFlowLogger", "TensorBoardLogger", "WandbLogger"]

_HERE = {
    "CometLogger": "a Logger of your own: log_metrics(metrics, step)",
    "NeptuneLogger": "a Logger of your own: log_metrics(metrics, step)",
}


def __getattr__(name: str) -> Any:
    return refuse_import(__name__, name, _HERE)
