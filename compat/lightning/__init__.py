"""Lightning code runs after a change of its import lines.

``import paceline.compat.lightning as L`` in the place of ``import lightning as L``. Names, arguments and
places in the loop are Lightning's; ``paceline.Trainer`` does the work. What differs is in
docs/migration/from-lightning.md.
"""

from __future__ import annotations

from typing import Any

from . import fabric, other_paths, pytorch
from .fabric import Fabric
from .pytorch import (
    Callback,
    LightningDataModule,
    LightningModule,
    Trainer,
    __version__,
    seed_everything,
)
from .translation.refusals import refuse_import

__all__ = [
    "Callback",
    "Fabric",
    "LightningDataModule",
    "LightningModule",
    "Trainer",
    "__version__",
    "fabric",
    "pytorch",
    "seed_everything",
]

other_paths.register(__name__)


def __getattr__(name: str) -> Any:
    return refuse_import(__name__, name, {})
