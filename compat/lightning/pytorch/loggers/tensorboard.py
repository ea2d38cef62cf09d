"""``TensorBoardLogger``, with the writer that ``experiment`` gives."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..... import callbacks as ours
from ..utilities.rank_zero import rank
from .logger import DummyExperiment, prefixed
from .version_folder import FolderLogger, PrefixedRows


class _Files(PrefixedRows, ours.TensorBoard):
    """Ours, whose scalars have Lightning's names and steps."""

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def tag(self, name: str) -> str:
        return name


_Files.__name__ = "TensorBoard"


class TensorBoardLogger(FolderLogger):
    """Event files in ``<save_dir>/<name>/version_<number>``.

    Args:
        save_dir: Where; None: the trainer's ``default_root_dir``.
        name: The folder of all versions.
        version: A number, or the folder's own name; None: the next number.
        log_graph: Accepted: no graph is written.
        default_hp_metric: Accepted.
        prefix: Before all names.
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
        self.sub_dir, self.prefix = sub_dir, prefix
        self.made = _Files()

    _writer: Any = None
    _of_the_run = ("_writer",)

    @property
    def log_dir(self) -> str:
        return os.path.join(super().log_dir, self.sub_dir) if self.sub_dir else super().log_dir

    def log_hyperparams(self, params: Any, metrics: Any = None, step: int | None = None) -> None:
        """Write values into ``hparams.yaml``, and metrics as scalars.

        Args:
            params: A mapping or namespace; what is no plain data is not written.
            metrics: By name; a single one is called ``hp_metric``.
            step: Of the metrics; 0 unless given.
        """
        super().log_hyperparams(params)
        if metrics is not None and not isinstance(metrics, Mapping):
            metrics = {"hp_metric": metrics}
        self.log_metrics(metrics or {}, step)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Values as scalars."""
        for name, value in prefixed(metrics, self.prefix).items():
            self.experiment.add_scalar(name, float(value), step or 0)

    @property
    def experiment(self) -> Any:
        """A ``torch.utils.tensorboard.SummaryWriter`` on rank 0, into ``log_dir``."""
        if rank():
            return DummyExperiment()
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self.log_dir, filename_suffix=".experiment")
        return self._writer

    def log_evaluation(self, metrics: dict[str, float], step: int) -> None:
        super().log_evaluation(metrics, step)
        self._close()

    def finalize(self, status: str) -> None:
        """Write what the writer of ``experiment`` has, and close its file; the next value opens another."""
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.flush()
            self._writer.close()
