"""``TQDMProgressBar``."""

from __future__ import annotations

from .bars import TQDMProgressBar

__all__ = ["TQDMProgressBar"]
