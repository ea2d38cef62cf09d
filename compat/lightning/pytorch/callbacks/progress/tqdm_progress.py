"""``TQDMProgressBar``."""

from __future__ import annotations

import math

from tqdm import tqdm as Tqdm

from .bars import TQDMProgressBar

__all__ = ["TQDMProgressBar", "Tqdm", "convert_inf"]


def convert_inf(x: float | None) -> float | None:
    """The number of batches for a bar; None where it is unknown."""
    return None if x is None or math.isinf(x) or math.isnan(x) else x
