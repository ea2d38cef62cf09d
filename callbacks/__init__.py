"""Built-in callbacks, one class per file, and what a callback may use of the trainer."""

from __future__ import annotations

from .base import Callback
from .checkpoint import Checkpoint
from .curves import Curves
from .early_stopping import EarlyStopping
from .gradient_accumulation import GradientAccumulationScheduler
from .hooks import Hooks
from .jsonl import JSONLogger
from .logger import Logger
from .progress import Progress
from .replica_check import ReplicaCheck
from .stragglers import Stragglers
from .summary import ModelSummary
from .tensorboard import TensorBoard
from .trainer_view import TrainerView

__all__ = [
    "Callback",
    "Checkpoint",
    "Curves",
    "EarlyStopping",
    "GradientAccumulationScheduler",
    "Hooks",
    "JSONLogger",
    "Logger",
    "ModelSummary",
    "Progress",
    "ReplicaCheck",
    "Stragglers",
    "TensorBoard",
    "TrainerView",
]
