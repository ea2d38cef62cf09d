"""Small functions that Lightning code imports from ``fabric``."""

from __future__ import annotations

from typing import Any

from ...pytorch.utilities import (
    move_data_to_device,
    rank_zero_debug,
    rank_zero_deprecation,
    rank_zero_info,
    rank_zero_only,
    rank_zero_warn,
)
from ...translation.refusals import refuse_import

__all__ = [
    "move_data_to_device",
    "rank_zero_debug",
    "rank_zero_deprecation",
    "rank_zero_info",
    "rank_zero_only",
    "rank_zero_warn",
]


def __getattr__(name: str) -> Any:
    return refuse_import(__name__, name, {name: "paceline.Trainer, or torch alone"})
