"""``AttributeDict``."""

from __future__ import annotations

from .....trainer.recorded import HParams as AttributeDict

__all__ = ["AttributeDict"]
