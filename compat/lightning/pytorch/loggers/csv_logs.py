"""``CSVLogger`` with Lightning's arguments."""

from __future__ import annotations

from typing import Any

from ..... import callbacks as ours
from .version_folder import FolderLogger


class CSVLogger(FolderLogger):
    """``metrics.csv`` in ``<save_dir>/<name>/version_<number>``.

    Args:
        save_dir: Where; None: the trainer's ``default_root_dir``.
        name: The folder of all versions.
        version: A number, or the folder's own name; None: the next number.
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
        super().__init__(save_dir, name, version)
        self.prefix = prefix
        self.made = ours.CSVLogger()

    def ours(self, trainer: Any) -> Any:
        return self.made
