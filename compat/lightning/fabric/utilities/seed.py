"""``seed_everything``."""

from __future__ import annotations

from ...pytorch.trainer import seed_everything

__all__ = ["seed_everything"]
