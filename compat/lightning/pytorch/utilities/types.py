"""Types that Lightning code annotates with."""

from __future__ import annotations

from typing import Any

STEP_OUTPUT = Any
EVAL_DATALOADERS = Any
TRAIN_DATALOADERS = Any
OptimizerLRScheduler = Any
OptimizerLRSchedulerConfig = dict[str, Any]
LRSchedulerTypeUnion = Any
LRSchedulerConfigType = dict[str, Any]
EPOCH_OUTPUT = Any
