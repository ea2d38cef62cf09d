"""Strategies under Lightning's names: each is one of ours."""

from __future__ import annotations

from typing import Any

from ...translation.refusals import refuse_import
from .ddp import DDPStrategy
from .deepspeed import DeepSpeedStrategy
from .fsdp import FSDPStrategy
from .single_device import SingleDeviceStrategy
from .strategy import Strategy

__all__ = ["DDPStrategy", "DeepSpeedStrategy", "FSDPStrategy", "SingleDeviceStrategy", "Strategy"]

_NO_TPU = "another strategy: no TPU is offered"


def __getattr__(name: str) -> Any:
    return refuse_import(
        __name__,
        name,
        {
            "ModelParallelStrategy": "FSDP(tensor=...) of paceline.strategies; the plan of configure_model "
            "moves into parallelize(self, mesh)",
            "ParallelStrategy": "Strategy, or trainer.world_size",
            "StrategyRegistry": "an entry point of the group paceline.strategies",
            **dict.fromkeys(("XLAStrategy", "XLAFSDPStrategy", "SingleDeviceXLAStrategy"), _NO_TPU),
        },
    )
