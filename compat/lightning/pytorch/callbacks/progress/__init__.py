"""Progress bars."""

from __future__ import annotations

from .bars import ProgressBar, RichProgressBar, RichProgressBarTheme, TQDMProgressBar

__all__ = ["ProgressBar", "RichProgressBar", "RichProgressBarTheme", "TQDMProgressBar"]
