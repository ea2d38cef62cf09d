"""What programs import from Lightning's ``fabric``; ``Fabric`` has no counterpart, and says so."""

from __future__ import annotations

from typing import Any

from ..pytorch.trainer import seed_everything
from ..translation.refusals import refuse_import

__all__ = ["seed_everything"]


def __getattr__(name: str) -> Any:
    return refuse_import(__name__, name, {name: "paceline.Trainer, or torch alone"})
