"""Types that Lightning code annotates with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed import ReduceOp as ReduceOp

from ...translation.schedulers import LRSchedulerConfig as LRSchedulerConfig

STEP_OUTPUT = Any
EVAL_DATALOADERS = Any
TRAIN_DATALOADERS = Any
OptimizerLRScheduler = Any
OptimizerLRSchedulerConfig = dict[str, Any]
LRSchedulerTypeUnion = Any
LRSchedulerConfigType = dict[str, Any]
EPOCH_OUTPUT = Any
_PATH = str | Path
_DEVICE = torch.device | str | int
_MAP_LOCATION_TYPE = Any
_EVALUATE_OUTPUT = list[dict[str, float]]
_PREDICT_OUTPUT = list[Any] | list[list[Any]]
LRSchedulerTypeTuple = (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
