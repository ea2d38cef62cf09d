"""Lightning's plugins: each stands for an argument of ``Trainer``, or for what happens here anyway."""

from __future__ import annotations

from typing import Any

from . import environments, io, layer_sync, precision
from .environments import ClusterEnvironment
from .io import AsyncCheckpointIO, CheckpointIO, TorchCheckpointIO
from .layer_sync import LayerSync, TorchSyncBatchNorm
from .precision import (
    DeepSpeedPrecision,
    DoublePrecision,
    FSDPPrecision,
    HalfPrecision,
    MixedPrecision,
    Precision,
)

__all__ = [
    "AsyncCheckpointIO",
    "CheckpointIO",
    "ClusterEnvironment",
    "DeepSpeedPrecision",
    "DoublePrecision",
    "FSDPPrecision",
    "HalfPrecision",
    "LayerSync",
    "MixedPrecision",
    "Precision",
    "TorchCheckpointIO",
    "TorchSyncBatchNorm",
    "environments",
    "io",
    "layer_sync",
    "precision",
]


def __getattr__(name: str) -> Any:
    return getattr(precision, name)
