"""``MLFlowLogger`` with Lightning's arguments."""

from __future__ import annotations

from typing import Any

from ..... import callbacks as ours
from .logger import Logger, refused_experiment


class MLFlowLogger(Logger):
    """MLflow.

    Args:
        experiment_name: The experiment.
        run_name: The run's name there.
        tracking_uri: The server or database.
        tags: Tags of the run.
        save_dir: Accepted, as are the next five.
        log_model: Accepted.
        prefix: Accepted.
        artifact_location: Accepted.
        run_id: Accepted.
        synchronous: Accepted.
    """

    def __init__(
        self,
        experiment_name: str = "lightning_logs",
        run_name: str | None = None,
        tracking_uri: str | None = None,
        tags: dict[str, Any] | None = None,
        save_dir: str | None = "./mlruns",
        log_model: Any = False,
        prefix: str = "",
        artifact_location: str | None = None,
        run_id: str | None = None,
        synchronous: bool | None = None,
    ) -> None:
        self._made = ours.MLflow(experiment_name, tracking_uri, tags or {}, run_name)

    def ours(self, trainer: Any) -> Any:
        return self._made

    @property
    def experiment(self) -> Any:
        """The client is used in the thread that writes rows.

        Raises:
            PacelineError: always, with what to call.
        """
        raise refused_experiment(self)
