"""Loggers under Lightning's names; each writes through one of ours."""

from __future__ import annotations

from typing import Any

from ..... import callbacks as ours
from ...translation.refusals import refuse_import
from .logger import Logger
from .tensorboard import TensorBoardLogger

__all__ = ["CSVLogger", "Logger", "MLFlowLogger", "TensorBoardLogger", "WandbLogger"]


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


class WandbLogger(Logger):
    """Weights & Biases.

    Args:
        name: The run's name there.
        save_dir: Accepted.
        version: Accepted: a run keeps its id in the run folder.
        offline: Keep it in the run folder.
        project: The project.
        log_model: Only False: checkpoints stay in the run folder.
        **options: Further arguments of ``wandb.init``; ``entity``, ``tags``, ``group`` ...
    """

    def __init__(
        self,
        name: str | None = None,
        save_dir: Any = ".",
        version: str | None = None,
        offline: bool = False,
        project: str | None = None,
        log_model: Any = False,
        **options: Any,
    ) -> None:
        for accepted in ("dir", "id", "anonymous", "experiment", "prefix", "checkpoint_name"):
            options.pop(accepted, None)
        self._made = ours.WandB(project, "offline" if offline else None, name=name, **options)

    def ours(self, trainer: Any) -> Any:
        return self._made

    def watch(self, *args: Any, **kwargs: Any) -> None:
        """Accepted: ``paceline.callbacks.Norms`` writes norms of gradients and weights."""


class MLFlowLogger(Logger):
    """MLflow.

    Args:
        experiment_name: The experiment.
        run_name: The run's name there.
        tracking_uri: The server or database.
        tags: Tags of the run.
        save_dir: Accepted.
        **options: Accepted.
    """

    def __init__(
        self,
        experiment_name: str = "lightning_logs",
        run_name: str | None = None,
        tracking_uri: str | None = None,
        tags: dict[str, Any] | None = None,
        save_dir: str | None = "./mlruns",
        **options: Any,
    ) -> None:
        self._made = ours.MLflow(experiment_name, tracking_uri, tags or {}, run_name)

    def ours(self, trainer: Any) -> Any:
        return self._made


_HERE = {
    "CometLogger": "a Logger of your own: log_metrics(metrics, step)",
    "NeptuneLogger": "a Logger of your own: log_metrics(metrics, step)",
}


def __getattr__(name: str) -> Any:
    refuse_import(__name__, name, _HERE)
