"""``RichProgressBar`` and its theme."""

from __future__ import annotations

from .bars import RichProgressBar, RichProgressBarTheme

__all__ = ["RichProgressBar", "RichProgressBarTheme"]
