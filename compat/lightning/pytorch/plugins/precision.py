"""Lightning's plugins of precision, by the argument that each stands for."""

from __future__ import annotations

from typing import Any

from ...translation.refusals import refuse_import
from .plugin import Plugin

__all__ = [
    "DeepSpeedPrecision",
    "DoublePrecision",
    "FSDPPrecision",
    "HalfPrecision",
    "MixedPrecision",
    "Precision",
    "PrecisionPlugin",
]


class Precision(Plugin):
    """float32.

    Attributes:
        precision: As ``Trainer(precision=...)`` takes it.
    """

    precision: Any = "32-true"

    def as_arguments(self) -> dict[str, Any]:
        return {"precision": self.precision}


PrecisionPlugin = Precision


class MixedPrecision(Precision):
    """Autocast.

    Args:
        precision: ``"16-mixed"`` or ``"bf16-mixed"``.
        device: Accepted: the Trainer's counts.
        scaler: Accepted: losses are scaled where the precision needs it.
    """

    def __init__(self, precision: str, device: Any = None, scaler: Any = None) -> None:
        self.precision = precision


class HalfPrecision(Precision):
    """Weights in 16 bits.

    Args:
        precision: ``"16-true"`` or ``"bf16-true"``.
    """

    def __init__(self, precision: str = "16-true") -> None:
        self.precision = precision


class DoublePrecision(Precision):
    """float64."""

    precision = "64-true"


class FSDPPrecision(MixedPrecision):
    """That of a model in shards."""


class DeepSpeedPrecision(MixedPrecision):
    """That of an engine."""


def __getattr__(name: str) -> Any:
    offered = 'Trainer(precision="bf16-mixed")'
    return refuse_import(
        __name__,
        name,
        {
            "TransformerEnginePrecision": offered,
            "XLAPrecision": offered,
            "BitsandbytesPrecision": "layers in 4 bits that the module builds itself",
        },
    )
