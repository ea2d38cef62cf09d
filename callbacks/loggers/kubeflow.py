"""The status of a TrainJob of Kubeflow Trainer: how far the run is, how long it takes, its metrics."""

from __future__ import annotations

import json
import math
import os
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from .logger import Logger, values_of

if TYPE_CHECKING:
    from ..trainer_view import TrainerView

_URL = "KUBEFLOW_TRAINER_SERVER_URL"
_CERTIFICATE = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
_TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"
_EVERY = 5.0  # seconds: as Kubeflow asks, for the sake of its controller
_SECONDS = 5.0  # for an answer


def is_in_train_job() -> bool:
    """Whether Kubeflow Trainer has said where this process may report its status."""
    return all(os.environ.get(name) for name in (_URL, _CERTIFICATE, _TOKEN))


class KubeflowStatus(Logger):
    """Reports to ``status.trainerStatus`` of the TrainJob: percent done, seconds left, latest metrics.

    It is added by itself where Kubeflow Trainer (2.2 or later, feature gate ``TrainJobStatus``) has set
    ``KUBEFLOW_TRAINER_SERVER_URL``, ``_CA_CERT`` and ``_TOKEN``; ``loggers=["-kubeflow"]`` leaves it out.
    A report is at most one in 5 seconds, from a thread, and the last one comes at the end of the fit. The
    token is read from its file each time, because it is renewed. A server that does not answer is a
    warning, as for every logger. Without a limit on steps or epochs there is no percentage.

    Example:
        >>> status = KubeflowStatus()  # outside of a TrainJob nothing is reported
        >>> run = Trainer(max_epochs=1, loggers=status, progress=False).fit(Net(), train_loader)

    Source:
        https://github.com/kubeflow/trainer/tree/master/docs/proposals/2779-trainjob-progress
    """

    def __init__(self) -> None:
        self._begin_fit(None)

    def _begin_fit(self, total_steps: int | None) -> None:
        self._total = total_steps
        self._first: tuple[float, float] | None = None  # seconds and steps of this session's first row
        self._position = (0.0, 0.0)
        self._metrics: dict[str, float] = {}
        self._reported_at = -math.inf

    def on_fit_start(self, trainer: TrainerView) -> None:
        self._begin_fit(trainer.total_steps)

    def write(self, row: dict[str, float]) -> None:
        """Report, unless the last report was less than 5 seconds ago."""
        self._metrics |= values_of(row)
        self._position = row["time"], row["step"]
        self._first = self._first or self._position
        if time.monotonic() - self._reported_at >= _EVERY:
            self._reported_at = time.monotonic()
            self._report(row["step"])

    def on_fit_end(self, trainer: TrainerView) -> None:
        if not (trainer.is_global_zero and self._metrics):
            return
        try:
            self._report(trainer.global_step)
        except Exception as error:  # of the network: the run has ended well
            trainer.log_line(f"warning: the TrainJob's status was not reported: {error}")

    def _report(self, step: float) -> None:
        if not is_in_train_job():
            return
        url = os.environ[_URL]
        if urlsplit(url).scheme != "https":
            raise ValueError(f"{_URL} is no https address, and the token is sent over nothing else: {url}")
        request = Request(
            url,
            json.dumps({"trainerStatus": self._status(step)}).encode(),
            {
                "Authorization": f"Bearer {Path(os.environ[_TOKEN]).read_text().strip()}",
                "Content-Type": "application/json",
            },
            method="POST",
        )
        trusted = ssl.create_default_context(cafile=os.environ[_CERTIFICATE])
        with urlopen(request, timeout=_SECONDS, context=trusted):  # errors of the server raise
            pass

    def _status(self, step: float) -> dict[str, Any]:
        status: dict[str, Any] = {
            "metrics": [{"name": n, "value": f"{v:.6g}"} for n, v in sorted(self._metrics.items())],
            "lastUpdatedTime": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if self._total:
            status["progressPercentage"] = min(int(100 * step / self._total), 100)
            if self._first is not None and self._position[1] > self._first[1]:
                seconds, steps = (now - then for now, then in zip(self._position, self._first, strict=True))
                left = max(self._total - step, 0)
                status["estimatedRemainingSeconds"] = round(left * seconds / steps)
        return status
