"""Loggers with the arguments that Lightning's ``fabric`` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..pytorch import loggers as those_of_the_trainer
from ..pytorch.loggers.logger import Logger, rank_zero_experiment
from ..pytorch.utilities.rank_zero import rank

__all__ = ["CSVLogger", "Logger", "TensorBoardLogger", "rank_zero_experiment"]


class FabricCSVLogger(those_of_the_trainer.CSVLogger):
    """``metrics.csv`` in ``<root_dir>/<name>/version_<number>``.

    Args:
        root_dir: Where.
        name: The folder of all versions.
        version: A number, or the folder's own name; None: the next number.
        prefix: Of the names of values.
        flush_logs_every_n_steps: Accepted: each row is written as it comes.
    """

    def __init__(
        self,
        root_dir: Any,
        name: str | None = "lightning_logs",
        version: Any = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ) -> None:
        super().__init__(root_dir, name, version, prefix)
        self._rows = 0

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """A row of values, on rank 0; without a step rows are counted."""
        if rank() == 0:
            Path(self.log_dir).mkdir(parents=True, exist_ok=True)
        super().log_metrics(dict(metrics), self._rows if step is None else step)
        self._rows += 1


class FabricTensorBoardLogger(those_of_the_trainer.TensorBoardLogger):
    """Event files in ``<root_dir>/<name>/version_<number>``.

    Args:
        root_dir: Where.
        name: The folder of all versions.
        version: A number, or the folder's own name; None: the next number.
        default_hp_metric: Accepted.
        prefix: Of the names of values.
        sub_dir: A folder of the version's.
        **accepted: Arguments of the writer.
    """

    def __init__(
        self,
        root_dir: Any,
        name: str | None = "lightning_logs",
        version: Any = None,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: Any = None,
        **accepted: Any,
    ) -> None:
        folder = None if sub_dir is None else str(sub_dir)
        super().__init__(root_dir, name, version, prefix=prefix, sub_dir=folder)


# LightningCLI finds the Trainer's by their names alone.
CSVLogger, TensorBoardLogger = FabricCSVLogger, FabricTensorBoardLogger


def __getattr__(name: str) -> Any:
    return getattr(those_of_the_trainer, name)
