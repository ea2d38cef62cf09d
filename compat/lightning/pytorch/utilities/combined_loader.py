"""``CombinedLoader``."""

from __future__ import annotations

from . import CombinedLoader

__all__ = ["CombinedLoader"]
