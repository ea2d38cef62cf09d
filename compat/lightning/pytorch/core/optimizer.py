"""``LightningOptimizer``."""

from __future__ import annotations

from ...translation.optimizer import LightningOptimizer

__all__ = ["LightningOptimizer"]
