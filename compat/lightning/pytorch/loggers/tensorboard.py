"""``TensorBoardLogger``, with the writer that ``experiment`` gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..... import callbacks as ours
from .logger import Logger


class _Nothing:
    """In the writer's place on other ranks, and where nothing is written: every call does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class TensorBoardLogger(Logger):
    """Event files in ``tb/`` of the run folder.

    Args:
        save_dir: Accepted: the run folder has them.
        name: Accepted.
        version: Accepted.
        log_graph: Accepted: no graph is written.
        default_hp_metric: Accepted.
        prefix: Accepted.
        sub_dir: Accepted.
        **options: Accepted.
    """

    def __init__(
        self,
        save_dir: Any = None,
        name: str | None = "lightning_logs",
        version: Any = None,
        log_graph: bool = False,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: Any = None,
        **options: Any,
    ) -> None:
        self._writer: Any = None

    def ours(self, trainer: Any) -> Any:
        return ours.TensorBoard()

    @property
    def log_dir(self) -> str | None:
        run = super().log_dir
        return None if run is None else str(Path(run) / "tb")

    @property
    def experiment(self) -> Any:
        """A ``torch.utils.tensorboard.SummaryWriter`` on rank 0, into the run folder."""
        run = None if self._run is None else self._run.ours
        if run is None or run.folder is None or not run.is_global_zero:
            return _Nothing()
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self.log_dir, filename_suffix=".experiment")
        return self._writer

    def close(self) -> None:
        """Close the writer of ``experiment``."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
