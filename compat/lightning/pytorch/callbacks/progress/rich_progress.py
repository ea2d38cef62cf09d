"""``RichProgressBar`` and its theme."""

from __future__ import annotations

from typing import Any

from .bars import RichProgressBar, RichProgressBarTheme

__all__ = ["RichProgressBar", "RichProgressBarTheme"]


def __getattr__(name: str) -> Any:
    if name != "CustomProgress":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rich.progress import Progress  # which a subclass of a program draws with, or does not

    return Progress
