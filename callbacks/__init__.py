"""Built-in callbacks, one class per file, and what a callback may use of the trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import lazy_names

if TYPE_CHECKING:
    from .base import Callback
    from .batch_size import BatchSizeScheduler
    from .checkpoint import Checkpoint
    from .confusion_matrix import ConfusionMatrix
    from .curves import Curves
    from .device_monitor import DeviceMonitor
    from .early_stopping import EarlyStopping
    from .ema import EMA
    from .evaluator import Evaluator
    from .freeze import Freeze
    from .gradient_accumulation import GradientAccumulationScheduler
    from .hooks import Hooks
    from .lambda_callback import LambdaCallback
    from .learning_rate import LearningRateMonitor
    from .loggers.csv_file import CSVLogger
    from .loggers.json_lines import JSONLogger
    from .loggers.kubeflow import KubeflowStatus
    from .loggers.logger import Logger
    from .loggers.media import Histogram, Image, Table, Text
    from .loggers.mlflow import MLflow
    from .loggers.tensorboard import TensorBoard
    from .loggers.trackio import Trackio
    from .loggers.wandb import WandB
    from .lookahead import Lookahead
    from .loss_spikes import LossSpikes
    from .norms import Norms
    from .prediction_writer import PredictionWriter
    from .profiler import Profiler
    from .progress import Progress
    from .ray_report import RayReport
    from .replica_check import ReplicaCheck
    from .sample_images import SampleImages
    from .step_record import StepRecord
    from .stragglers import Stragglers
    from .summary import ModelSummary
    from .swa import SWA
    from .throughput import Throughput
    from .timer import Timer
    from .trainer_view import CountersView, LoopView, RanksView, TrainerView
    from .weight_average import WeightAverage

__all__ = [
    "EMA",
    "SWA",
    "BatchSizeScheduler",
    "CSVLogger",
    "Callback",
    "Checkpoint",
    "ConfusionMatrix",
    "CountersView",
    "Curves",
    "DeviceMonitor",
    "EarlyStopping",
    "Evaluator",
    "Freeze",
    "GradientAccumulationScheduler",
    "Histogram",
    "Hooks",
    "Image",
    "JSONLogger",
    "KubeflowStatus",
    "LambdaCallback",
    "LearningRateMonitor",
    "Logger",
    "Lookahead",
    "LoopView",
    "LossSpikes",
    "MLflow",
    "ModelSummary",
    "Norms",
    "PredictionWriter",
    "Profiler",
    "Progress",
    "RanksView",
    "RayReport",
    "ReplicaCheck",
    "SampleImages",
    "StepRecord",
    "Stragglers",
    "Table",
    "TensorBoard",
    "Text",
    "Throughput",
    "Timer",
    "Trackio",
    "TrainerView",
    "WandB",
    "WeightAverage",
]

_HOMES = {
    "Callback": "base",
    "BatchSizeScheduler": "batch_size",
    "Checkpoint": "checkpoint",
    "ConfusionMatrix": "confusion_matrix",
    "Curves": "curves",
    "DeviceMonitor": "device_monitor",
    "EarlyStopping": "early_stopping",
    "EMA": "ema",
    "Evaluator": "evaluator",
    "Freeze": "freeze",
    "GradientAccumulationScheduler": "gradient_accumulation",
    "Hooks": "hooks",
    "LambdaCallback": "lambda_callback",
    "LearningRateMonitor": "learning_rate",
    "CSVLogger": "loggers.csv_file",
    "JSONLogger": "loggers.json_lines",
    "KubeflowStatus": "loggers.kubeflow",
    "Logger": "loggers.logger",
    "Histogram": "loggers.media",
    "Image": "loggers.media",
    "Table": "loggers.media",
    "Text": "loggers.media",
    "MLflow": "loggers.mlflow",
    "TensorBoard": "loggers.tensorboard",
    "Trackio": "loggers.trackio",
    "WandB": "loggers.wandb",
    "Lookahead": "lookahead",
    "LossSpikes": "loss_spikes",
    "Norms": "norms",
    "PredictionWriter": "prediction_writer",
    "Profiler": "profiler",
    "Progress": "progress",
    "RayReport": "ray_report",
    "ReplicaCheck": "replica_check",
    "SampleImages": "sample_images",
    "StepRecord": "step_record",
    "Stragglers": "stragglers",
    "ModelSummary": "summary",
    "SWA": "swa",
    "Throughput": "throughput",
    "Timer": "timer",
    "CountersView": "trainer_view",
    "LoopView": "trainer_view",
    "RanksView": "trainer_view",
    "TrainerView": "trainer_view",
    "WeightAverage": "weight_average",
}


if not TYPE_CHECKING:  # a type checker is to know which names there are
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
