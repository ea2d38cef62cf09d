"""``grad_norm``."""

from __future__ import annotations

from . import grad_norm

__all__ = ["grad_norm"]
