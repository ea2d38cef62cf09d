"""What programs import from Lightning's ``fabric``."""

from __future__ import annotations

from typing import Any

from ..pytorch.trainer import seed_everything
from ..translation.refusals import refuse_import
from .fabric import Fabric
from .wrappers import is_wrapped

__all__ = ["Fabric", "is_wrapped", "seed_everything"]


def __getattr__(name: str) -> Any:
    return refuse_import(__name__, name, {name: "paceline.Trainer, or torch alone"})
