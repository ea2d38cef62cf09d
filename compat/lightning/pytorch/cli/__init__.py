"""``LightningCLI``: command lines and configuration files for modules, on ``jsonargparse``."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from ...translation.configured import instantiate_module
from ...translation.refusals import refuse_import

if find_spec("jsonargparse") is None:
    raise ModuleNotFoundError(
        "LightningCLI needs jsonargparse: pip install 'paceline[cli]'", name="jsonargparse"
    )

from .classes import (
    LRSchedulerCallable,
    LRSchedulerType,
    LRSchedulerTypeTuple,
    LRSchedulerTypeUnion,
    OptimizerCallable,
    ReduceLROnPlateau,
    instantiate_class,
)
from .command_line import ArgsType, LightningCLI
from .parser import LightningArgumentParser
from .save_config import SaveConfigCallback

__all__ = [
    "ArgsType",
    "LRSchedulerCallable",
    "LRSchedulerType",
    "LRSchedulerTypeTuple",
    "LRSchedulerTypeUnion",
    "LightningArgumentParser",
    "LightningCLI",
    "OptimizerCallable",
    "ReduceLROnPlateau",
    "SaveConfigCallback",
    "instantiate_class",
    "instantiate_module",
]


def __getattr__(name: str) -> Any:
    return refuse_import(__name__, name, {})
