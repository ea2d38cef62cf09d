"""``Strategy``, which Lightning code imports for annotations."""

from __future__ import annotations

from .....strategies import Strategy

__all__ = ["Strategy"]
