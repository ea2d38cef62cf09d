"""Built-in callbacks, one class per file, and what a callback may use of the trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy_names import lazy_names

if TYPE_CHECKING:
    from .averages.ema import EMA
    from .averages.lookahead import Lookahead
    from .averages.swa import SWA
    from .averages.weight_average import WeightAverage
    from .base import Callback
    from .batches.batch_size import BatchSizeScheduler
    from .batches.gradient_accumulation import GradientAccumulationScheduler
    from .checkpoint import Checkpoint
    from .checks import Checks
    from .early_stopping import EarlyStopping
    from .evaluator import Evaluator
    from .freeze import Freeze
    from .hooks import Hooks
    from .lambda_callback import LambdaCallback
    from .loggers.csv_file import CSVLogger
    from .loggers.json_lines import JSONLogger
    from .loggers.kubeflow import KubeflowStatus
    from .loggers.logger import Logger
    from .loggers.media import Histogram, Image, Table, Text
    from .loggers.mlflow import MLflow
    from .loggers.ray_report import RayReport
    from .loggers.tensorboard import TensorBoard
    from .loggers.trackio import Trackio
    from .loggers.wandb import WandB
    from .monitors.device_monitor import DeviceMonitor
    from .monitors.learning_rate import LearningRateMonitor
    from .monitors.loss_spikes import LossSpikes
    from .monitors.norms import Norms
    from .monitors.profiler import Profiler
    from .monitors.replica_check import ReplicaCheck
    from .monitors.step_record import StepRecord
    from .monitors.stragglers import Stragglers
    from .monitors.throughput import Throughput
    from .monitors.timer import Timer
    from .optuna_pruning import OptunaPruning
    from .pictures.confusion_matrix import ConfusionMatrix
    from .pictures.curves import Curves
    from .pictures.sample_images import SampleImages
    from .prediction_writer import PredictionWriter
    from .progress import Progress
    from .summary import ModelSummary
    from .trainer_view import CountersView, LoopView, RanksView, TrainerView

__all__ = [
    "EMA",
    "SWA",
    "BatchSizeScheduler",
    "CSVLogger",
    "Callback",
    "Checkpoint",
    "Checks",
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
    "OptunaPruning",
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
    "BatchSizeScheduler": "batches.batch_size",
    "Checkpoint": "checkpoint",
    "Checks": "checks.checks",
    "ConfusionMatrix": "pictures.confusion_matrix",
    "Curves": "pictures.curves",
    "DeviceMonitor": "monitors.device_monitor",
    "EarlyStopping": "early_stopping",
    "EMA": "averages.ema",
    "Evaluator": "evaluator",
    "Freeze": "freeze",
    "GradientAccumulationScheduler": "batches.gradient_accumulation",
    "Hooks": "hooks",
    "LambdaCallback": "lambda_callback",
    "LearningRateMonitor": "monitors.learning_rate",
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
    "Lookahead": "averages.lookahead",
    "LossSpikes": "monitors.loss_spikes",
    "Norms": "monitors.norms",
    "OptunaPruning": "optuna_pruning",
    "PredictionWriter": "prediction_writer",
    "Profiler": "monitors.profiler",
    "Progress": "progress",
    "RayReport": "loggers.ray_report",
    "ReplicaCheck": "monitors.replica_check",
    "SampleImages": "pictures.sample_images",
    "StepRecord": "monitors.step_record",
    "Stragglers": "monitors.stragglers",
    "ModelSummary": "summary",
    "SWA": "averages.swa",
    "Throughput": "monitors.throughput",
    "Timer": "monitors.timer",
    "CountersView": "trainer_view",
    "LoopView": "trainer_view",
    "RanksView": "trainer_view",
    "TrainerView": "trainer_view",
    "WeightAverage": "averages.weight_average",
}


if not TYPE_CHECKING:  # a type checker is to know which names there are
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
