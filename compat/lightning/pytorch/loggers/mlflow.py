"""``MLFlowLogger`` with Lightning's arguments, and the client of MLflow."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

from .....callbacks.loggers.flat import flat_config
from .logger import Logger, plain_hparams, prefixed, rank_zero_experiment

_LONGEST = 250  # characters of a parameter
_MOST = 100  # parameters of a batch


class MLFlowLogger(Logger):
    """MLflow, with the client that ``experiment`` gives.

    ``paceline.callbacks.MLflow`` writes in a thread, and continues a run that is resumed by itself.

    Args:
        experiment_name: The experiment.
        run_name: The run's name there.
        tracking_uri: The server or database; ``MLFLOW_TRACKING_URI``, or a database in ``save_dir``.
        tags: Tags of the run.
        save_dir: Where that database is.
        log_model: Accepted: checkpoints stay in the run folder.
        prefix: Before all names.
        artifact_location: Of an experiment that is new.
        run_id: A run to continue.
        synchronous: Whether to wait for the server at each row.
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
        given = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._folder = None if given else str(save_dir or ".")
        self._uri = given or f"sqlite:///{Path(save_dir or '.').absolute() / 'mlflow.db'}"
        self._experiment_name, self._run_name, self._prefix = experiment_name, run_name, prefix
        self._tags, self._location = dict(tags or {}), artifact_location
        self._run_id, self._experiment_id = run_id, ""
        self._options = {} if synchronous is None else {"synchronous": synchronous}

    _client: Any = None
    _of_the_run = ("_client",)

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The ``MlflowClient``; experiment and run are made when it is first asked for.

        Raises:
            ModuleNotFoundError: where mlflow is not installed.
        """
        if self._client is None:
            from mlflow.tracking import MlflowClient

            if self._folder is not None:
                Path(self._folder).mkdir(parents=True, exist_ok=True)
            client = MlflowClient(self._uri)
            if self._run_id is None:
                found = client.get_experiment_by_name(self._experiment_name)
                exists = found is not None and found.lifecycle_stage != "deleted"
                self._experiment_id = (
                    found.experiment_id
                    if exists
                    else client.create_experiment(self._experiment_name, self._location)
                )
                made = client.create_run(self._experiment_id, tags=self._tags, run_name=self._run_name)
                self._run_id = made.info.run_id
            else:
                self._experiment_id = client.get_run(self._run_id).info.experiment_id
            self._client = client
        return self._client

    @property
    def run_id(self) -> str | None:
        """The run's id there; None on other ranks than 0."""
        return self.experiment and self._run_id

    @property
    def experiment_id(self) -> str | None:
        """The experiment's id there; "" on other ranks than 0."""
        return self.experiment and self._experiment_id

    @property
    def name(self) -> str | None:
        return self.experiment_id

    @property
    def version(self) -> str | None:
        return self.run_id

    @property
    def save_dir(self) -> str | None:
        """The folder of the database; None where an address was given."""
        return self._folder

    @property
    def log_dir(self) -> None:
        """None: ``save_dir`` is the folder."""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Parameters of the run, without secrets.

        Args:
            params: A mapping or namespace; what is no plain data is not sent.
            *args: Accepted.
            **kwargs: Accepted.
        """
        from mlflow.entities import Param

        client, values = self.experiment, flat_config(plain_hparams(params))
        found = [Param(name, str(value)[:_LONGEST]) for name, value in values.items()]
        for at in range(0, len(found), _MOST):
            client.log_batch(self._run_id, params=found[at : at + _MOST], **self._options)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Values at a step; names without the characters that MLflow does not take."""
        from mlflow.entities import Metric

        client, now = self.experiment, int(time.time() * 1000)
        found = [
            Metric(re.sub(r"[^\w/. -]+", "", name), float(value), now, step or 0)
            for name, value in prefixed(metrics, self._prefix).items()
        ]
        client.log_batch(self._run_id, metrics=found, **self._options)

    def finalize(self, status: str) -> None:
        """The run is over: ``"success"`` or ``"failed"``."""
        if self._client is not None:
            self._client.set_terminated(self._run_id, "FAILED" if status == "failed" else "FINISHED")
