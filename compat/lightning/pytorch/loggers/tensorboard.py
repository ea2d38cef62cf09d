"""``TensorBoardLogger``, with the writer that ``experiment`` gives."""

from __future__ import annotations

import os
from typing import Any

from ..... import callbacks as ours
from .logger import DummyExperiment
from .version_folder import FolderLogger


class TensorBoardLogger(FolderLogger):
    """Event files in ``<save_dir>/<name>/version_<number>``.

    Args:
        save_dir: Where; None: the trainer's ``default_root_dir``.
        name: The folder of all versions.
        version: A number, or the folder's own name; None: the next number.
        log_graph: Accepted: no graph is written.
        default_hp_metric: Accepted.
        prefix: Accepted.
        sub_dir: A folder of the version's.
        comment: Accepted, as are the next four.
        purge_step: Accepted.
        max_queue: Accepted.
        flush_secs: Accepted.
        filename_suffix: Accepted.
    """

    def __init__(
        self,
        save_dir: Any = None,
        name: str | None = "lightning_logs",
        version: Any = None,
        log_graph: bool = False,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: str | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
    ) -> None:
        super().__init__(save_dir, name, version)
        self.sub_dir = sub_dir
        self.made = ours.TensorBoard()
        self._writer: Any = None

    def ours(self, trainer: Any) -> Any:
        return self.made

    @property
    def log_dir(self) -> str:
        return os.path.join(super().log_dir, self.sub_dir) if self.sub_dir else super().log_dir

    def log_hyperparams(
        self, params: Any, metrics: dict[str, Any] | None = None, step: int | None = None
    ) -> None:
        """Write values into ``hparams.yaml``, and metrics as scalars.

        Args:
            params: A mapping or namespace; what is no plain data is not written.
            metrics: By name.
            step: Of the metrics; 0 unless given.
        """
        super().log_hyperparams(params)
        for name, value in (metrics or {}).items():
            self.experiment.add_scalar(name, value, step or 0)

    @property
    def experiment(self) -> Any:
        """A ``torch.utils.tensorboard.SummaryWriter`` on rank 0, into ``log_dir``."""
        run = None if self._run is None else self._run.ours
        if run is None or self.made.folder is None or not run.is_global_zero:
            return DummyExperiment()
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self.log_dir, filename_suffix=".experiment")
        return self._writer

    def close(self) -> None:
        """Close the writer of ``experiment``."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
