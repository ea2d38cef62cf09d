"""``AttributeDict``."""

from __future__ import annotations

from .....trainer.module_parts.recorded import HParams as AttributeDict

__all__ = ["AttributeDict"]
