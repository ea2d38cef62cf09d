"""``HyperparametersMixin``."""

from __future__ import annotations

from ...translation.hyperparameters import HyperparametersMixin

__all__ = ["HyperparametersMixin"]
