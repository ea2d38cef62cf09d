"""MLflow."""

from __future__ import annotations

import logging
import os
import posixpath
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...common.argument_checks import TEXT_OR_NONE, Kind, check_arguments
from .flat import flat_config
from .logger import values_of
from .media import Image, Media, Table, Text, unique
from .series import POSITION
from .tracker import Ended, TrackedRun, Tracker

_TAGS = Kind(lambda: Mapping[str, str], "a dict of strings")
_MOST_METRICS, _MOST_PARAMS = 1000, 100  # of one log_batch
_LONGEST_NAME, _LONGEST_PARAM = 250, 6000
_STATUS: dict[Ended, str] = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
_NO_BARS = "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"  # in the middle of training's own
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""For a server that is away: by default a request is repeated for minutes."""


class MLflow(Tracker):
    """Sends the run to MLflow: a server, or a database beside the runs.

    Each row is one ``log_batch``; ``epoch``, ``time``, ``samples`` and ``tokens`` are the metrics
    ``position/epoch`` and so on. The configuration is the run's parameters, ``trainer.max_epochs`` for
    example, written once. A run that resumes continues under its id and is RUNNING again; at the end it is
    FINISHED, FAILED after an error, KILLED after a signal. Nothing global is used: other runs of MLflow in
    the process stay as they are. The package is ``pip install 'paceline[mlflow]'``.

    MLflow keeps infinities as the largest float. Characters of a name that it does not take become ``_``.

    Args:
        experiment: The experiment; ``MLFLOW_EXPERIMENT_NAME``, or the run's name.
        tracking_uri: The server or database; ``MLFLOW_TRACKING_URI``, or ``mlflow.db`` in ``run_dir``.
            Images, tables and texts are in ``mlartifacts/`` beside a database of SQLite.
        tags: Tags of the run.
        name: The run's name there; by default that of its folder, ``<name>/<n>``.

    Raises:
        PacelineError: for arguments that are not right; at the start of a fit where mlflow is missing.

    Example:
        >>> trainer = Trainer(loggers=MLflow("digits", tags={"kind": "baseline"}))
    """

    package = "mlflow"
    shows = (Image, Table, Text)

    def __init__(
        self,
        experiment: str | None = None,
        tracking_uri: str | None = None,
        tags: Mapping[str, str] = {},
        name: str | None = None,
    ) -> None:
        super().__init__()
        check_arguments(
            "MLflow",
            experiment=(experiment, TEXT_OR_NONE),
            tracking_uri=(tracking_uri, TEXT_OR_NONE),
            tags=(tags, _TAGS),
            name=(name, TEXT_OR_NONE),
        )
        self.experiment, self.tracking_uri = experiment, tracking_uri
        self.tags, self.name_there = dict(tags), name
        self._client: Any = None
        self._id = ""
        self._begun: TrackedRun | None = None
        self._placed_step = -1

    def open(self, run: TrackedRun) -> str:
        from mlflow.tracking import MlflowClient

        root = Path.cwd() if run.folder is None else run.folder.parent.parent.absolute()
        ours = f"sqlite:///{root / 'mlflow.db'}"
        uri = self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or ours
        os.environ.setdefault(_NO_BARS, "false")
        if uri.startswith("http"):
            for name, value in _PATIENCE.items():
                os.environ.setdefault(name, value)
        with _no_lines_of("mlflow", "alembic"):
            client = self._client = MlflowClient(tracking_uri=uri)
            self._placed_step = -1
            if run.run_id is not None:
                client.update_run(run.run_id, status="RUNNING")
                self._id = run.run_id
            else:
                self._id = self._created(run, _artifacts(uri))
        self.place = f"run {self._id} in {uri if '@' not in uri else uri.rpartition('@')[2]}"
        return self._id

    def _created(self, run: TrackedRun, artifacts: str | None) -> str:
        from mlflow.entities import Param

        client = self._client
        name = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.project
        found = client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else client.create_experiment(name, artifacts)
        if run != self._begun:  # else its parameters could not be sent the last time
            made = client.create_run(experiment, run_name=self.name_there or run.name, tags=self.tags)
            self._id, self._begun = str(made.info.run_id), run
        run_id = self._id
        config = flat_config(run.config)
        names = [_name(name) for name in unique(_name(key) for key in config)]
        params = [Param(n, str(v)[:_LONGEST_PARAM]) for n, v in zip(names, config.values(), strict=True)]
        for first in range(0, len(params), _MOST_PARAMS):
            client.log_batch(run_id, params=params[first : first + _MOST_PARAMS])
        return run_id

    def send(self, row: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now, step = int(time.time() * 1000), int(row["step"])
        values = values_of(row)
        if step != self._placed_step:  # one point a step, where several rows belong to it
            self._placed_step = step
            values |= {f"position/{key}": row[key] for key in POSITION[1:] if key in row}
        metrics = [Metric(_name(key), float(value), now, step) for key, value in values.items()]
        for first in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[first : first + _MOST_METRICS])

    def send_media(self, row: dict[str, float], name: str, media: Media) -> None:
        name, step = _name(name), int(row["step"])
        if isinstance(media, Image):
            from PIL import Image as pillow

            self._client.log_image(self._id, pillow.fromarray(media.pixels), key=name, step=step)
        elif isinstance(media, Table):
            columns = zip(*media.rows, strict=True) if media.rows else [()] * len(media.columns)
            table = {key: list(cells) for key, cells in zip(unique(media.columns), columns, strict=True)}
            self._client.log_table(self._id, table, f"tables/{name}/step-{step:08}.json")
        elif isinstance(media, Text):
            self._client.log_text(self._id, media.text, f"texts/{name}/step-{step:08}.md")

    def close(self, ended: Ended) -> None:
        self._client.set_terminated(self._id, _STATUS[ended])


def _artifacts(uri: str) -> str | None:
    """Beside a database that is a file; by itself MLflow takes the current folder. None: MLflow decides."""
    path = uri.removeprefix("sqlite:///").partition("?")[0]
    return (Path(path).absolute().parent / "mlartifacts").as_uri() if path and path != uri else None


def _name(name: str) -> str:
    """A name as MLflow takes it: of few characters, and one that as a path stays as it is."""
    plain = posixpath.normpath(re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII))
    return plain.lstrip("./")[:_LONGEST_NAME].rstrip("/") or "_"


@contextmanager
def _no_lines_of(*packages: str) -> Iterator[None]:
    """Their loggers are silent inside, up to warnings: making a database takes lines of its progress."""
    loggers = [logging.getLogger(package) for package in packages]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
