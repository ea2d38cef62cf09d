"""The parts of a fit that is ready to run: what the training loop sees, and nobody else."""

from __future__ import annotations

from dataclasses import dataclass

from ...strategies.trained import TrainedParameters
from ..checkpoint.manager import CheckpointManager
from ..data.feed import Feed
from ..faults.nonfinite import Guard
from ..optimization import Optimization
from .context import StageContext
from .evaluation_loop import EvaluationLoop
from .manual_optimizer import ManualOptimization
from .replicas import Replicas


@dataclass(frozen=True, kw_only=True)
class FitContext(StageContext):
    """Everything is built and restored.

    Attributes:
        feed: The training data, step by step.
        guard: Checks losses and gradients; None under ``nonfinite="ignore"``.
        manual: What a module with ``automatic_optimization = False`` steps by.
        validation: None where the run has none.
        trained: Notices that something else is trained; None where the strategy does not mind.
        replicas: Compares the ranks' copies of the weights.
    """

    feed: Feed
    optimization: Optimization
    guard: Guard | None
    manual: ManualOptimization
    checkpoints: CheckpointManager
    validation: EvaluationLoop | None
    trained: TrainedParameters | None
    replicas: Replicas
