"""Progress bars under Lightning's names."""

from __future__ import annotations

from typing import Any

from ..... import callbacks as ours
from .callback import Callback
from .overrides import refuse_overrides


class TQDMProgressBar(Callback):
    """The progress bar; its look is ours.

    Args:
        refresh_rate: 0 shows none.
        process_position: Accepted.
        leave: Accepted.
    """

    def __init__(self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False) -> None:
        self.refresh_rate = refresh_rate

    def ours(self, trainer: Any) -> list[Any]:
        refuse_overrides(self, TQDMProgressBar, "ProgressBar")
        return [ours.Progress()] if self.refresh_rate else []


class RichProgressBar(Callback):
    """The progress bar; its look is ours.

    Args:
        refresh_rate: 0 shows none.
        leave: Accepted.
        theme: Accepted.
        console_kwargs: Accepted.
    """

    def __init__(
        self, refresh_rate: int = 1, leave: bool = False, theme: Any = None, console_kwargs: Any = None
    ) -> None:
        self.refresh_rate = refresh_rate

    def ours(self, trainer: Any) -> list[Any]:
        refuse_overrides(self, RichProgressBar, "ProgressBar")
        return [ours.Progress()] if self.refresh_rate else []
