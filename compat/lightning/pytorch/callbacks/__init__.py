"""Callbacks under Lightning's names; each does its work through one of ours."""

from __future__ import annotations

from typing import Any

from ...translation.refusals import refuse_import
from .backbone_finetuning import BackboneFinetuning
from .batch_size_finder import BatchSizeFinder
from .callback import Callback, LambdaCallback
from .device_stats_monitor import DeviceStatsMonitor
from .early_stopping import EarlyStopping
from .finetuning import BaseFinetuning
from .gradient_accumulation_scheduler import GradientAccumulationScheduler
from .lr_finder import LearningRateFinder
from .lr_monitor import LearningRateMonitor
from .model_checkpoint import Checkpoint, ModelCheckpoint
from .model_summary import ModelSummary, RichModelSummary
from .prediction_writer import BasePredictionWriter
from .progress import ProgressBar, RichProgressBar, TQDMProgressBar
from .timer import Timer
from .weight_averaging import EMAWeightAveraging, StochasticWeightAveraging, WeightAveraging

__all__ = [
    "BackboneFinetuning",
    "BaseFinetuning",
    "BasePredictionWriter",
    "BatchSizeFinder",
    "Callback",
    "Checkpoint",
    "DeviceStatsMonitor",
    "EMAWeightAveraging",
    "EarlyStopping",
    "GradientAccumulationScheduler",
    "LambdaCallback",
    "LearningRateFinder",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelSummary",
    "ProgressBar",
    "RichModelSummary",
    "RichProgressBar",
    "StochasticWeightAveraging",
    "TQDMProgressBar",
    "Timer",
    "WeightAveraging",
]

_HERE = {
    "ModelPruning": "torch.nn.utils.prune in a Callback",
    "OnExceptionCheckpoint": "ModelCheckpoint(save_on_exception=True)",
    "SpikeDetection": "paceline.callbacks.LossSpikes",
    "ThroughputMonitor": "paceline.callbacks.Throughput",
}


def __getattr__(name: str) -> Any:
    return refuse_import(__name__, name, _HERE)
