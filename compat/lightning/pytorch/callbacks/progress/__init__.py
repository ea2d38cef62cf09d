"""Progress bars."""

from __future__ import annotations

from .bars import RichProgressBar, RichProgressBarTheme, TQDMProgressBar

__all__ = ["RichProgressBar", "RichProgressBarTheme", "TQDMProgressBar"]
