"""Types that Lightning code annotates with."""

from __future__ import annotations

from typing import Any

import torch

from ...translation.schedulers import LRSchedulerConfig as LRSchedulerConfig

STEP_OUTPUT = Any
EVAL_DATALOADERS = Any
TRAIN_DATALOADERS = Any
OptimizerLRScheduler = Any
OptimizerLRSchedulerConfig = dict[str, Any]
LRSchedulerTypeUnion = Any
LRSchedulerConfigType = dict[str, Any]
EPOCH_OUTPUT = Any
LRSchedulerTypeTuple = (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
