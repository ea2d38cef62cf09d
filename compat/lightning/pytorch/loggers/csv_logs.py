"""``CSVLogger`` with Lightning's arguments."""

from __future__ import annotations

from typing import Any

from ..... import callbacks as ours
from .logger import Logger


class CSVLogger(Logger):
    """``metrics.csv`` in the run folder.

    Args:
        save_dir: Accepted: the run folder has it.
        name: Accepted.
        version: Accepted.
        prefix: Accepted.
        flush_logs_every_n_steps: Accepted: each row is written as it comes.
    """

    def __init__(
        self,
        save_dir: Any = None,
        name: str | None = "lightning_logs",
        version: Any = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ) -> None:
        self.prefix = prefix

    def ours(self, trainer: Any) -> Any:
        return ours.CSVLogger()
