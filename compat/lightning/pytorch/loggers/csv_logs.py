"""``CSVLogger`` with Lightning's arguments."""

from __future__ import annotations

from typing import Any

from ..... import callbacks as ours
from ...translation.copies import state_without
from ..utilities.rank_zero import rank
from .logger import prefixed
from .version_folder import FolderLogger, PrefixedRows


class _File(PrefixedRows, ours.CSVLogger):
    """Ours, whose rows have Lightning's names and steps."""

    def __getstate__(self) -> dict[str, Any]:
        return state_without(self, "given")

    def add(self, folder: str, row: dict[str, float]) -> None:
        """Write a row, outside of a fit too.

        Args:
            folder: Where the file is.
            row: With ``step``.
        """
        if self._path is None:
            self._open(folder)
        ours.CSVLogger.write(self, row)


_File.__name__ = "CSVLogger"


class CSVLogger(FolderLogger):
    """``metrics.csv`` in ``<save_dir>/<name>/version_<number>``.

    Args:
        save_dir: Where; None: the trainer's ``default_root_dir``.
        name: The folder of all versions.
        version: A number, or the folder's own name; None: the next number.
        prefix: Before all names but ``step``.
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
        self.made = _File()

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """A row of values, on rank 0."""
        if rank() == 0:
            named = prefixed(metrics, self.prefix)
            row = {n: value if isinstance(value, int) else float(value) for n, value in named.items()}
            self.made.add(self.log_dir, {**row, "step": step or 0})
