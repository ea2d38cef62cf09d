"""The status of a TrainJob of Kubeflow Trainer: how far the run is, how long it takes, its metrics."""

from __future__ import annotations

import json
import os
import ssl
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from .logger import Logger, values_of

if TYPE_CHECKING:
    from ..trainer_view import TrainerView

_URL = "KUBEFLOW_TRAINER_SERVER_URL"
_CERTIFICATE = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
_TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"
_EVERY = 5.0  # seconds: as Kubeflow asks, for the sake of its controller
_SECONDS = 5.0  # for an answer
_MOST_SECONDS = 2**31 - 1  # the field has 32 bits


def is_in_train_job() -> bool:
    """Whether Kubeflow Trainer has said where this process may report its status."""
    return all(os.environ.get(name) for name in (_URL, _CERTIFICATE, _TOKEN))


class KubeflowStatus(Logger):
    """Reports to ``status.trainerStatus`` of the TrainJob: percent done, seconds left, latest metrics.

    It is added by itself where Kubeflow Trainer (2.2 or later, feature gate ``TrainJobStatus``) has set
    ``KUBEFLOW_TRAINER_SERVER_URL``, ``_CA_CERT`` and ``_TOKEN``; ``loggers=["-kubeflow"]`` leaves it out.
    A thread sends what is new every 5 seconds; the last report comes after the last checkpoint, with 100
    percent unless a signal or an error has ended the fit. The token is read from its file each time,
    because it is renewed. While the server does not answer, one warning is logged and the thread tries
    again. Where the number of steps is not known, there is no percentage.

    Example:
        >>> status = KubeflowStatus()  # outside of a TrainJob nothing is reported
        >>> run = Trainer(max_epochs=1, loggers=status, progress=False).fit(Net(), train_loader)

    Source:
        https://github.com/kubeflow/trainer/tree/master/docs/proposals/2779-trainjob-progress
    """

    background = False  # a row is only noted

    def __init__(self) -> None:
        self._sender: threading.Thread | None = None
        self._begin_fit(None)

    def _begin_fit(self, total_steps: int | None) -> None:
        self._total, self._is_complete, self._has_warned = total_steps, False, False
        self._first: tuple[float, float] | None = None  # seconds and steps of this session's first row
        self._last = (0.0, 0.0)
        self._metrics: dict[str, float] = {}
        self._is_over, self._is_new = threading.Event(), threading.Event()

    def on_fit_start(self, trainer: TrainerView) -> None:
        self._begin_fit(trainer.total_steps)
        if trainer.is_global_zero and is_in_train_job():
            self._sender = threading.Thread(
                target=self._send_all, args=(trainer,), name="kubeflow", daemon=True
            )
            self._sender.start()

    def on_train_epoch_start(self, trainer: TrainerView) -> None:
        self._total = trainer.total_steps  # known from the end of the first epoch on, for some data

    def write(self, row: dict[str, float]) -> None:
        """Note the row for the next report."""
        self._metrics = self._metrics | values_of(row)
        self._last = row["time"], row["step"]
        self._first = self._first or self._last
        self._is_new.set()

    def on_fit_end(self, trainer: TrainerView) -> None:
        self._is_complete = not trainer.interrupted

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        if self._sender is None or stage != "fit":
            return
        self._is_over.set()
        self._sender.join(_SECONDS)
        self._sender = None
        self._report(trainer)

    def _send_all(self, trainer: TrainerView) -> None:
        over = self._is_over
        while not over.is_set():
            if self._is_new.wait(_EVERY) and not over.is_set():
                self._is_new.clear()
                self._report(trainer)
                over.wait(_EVERY)

    def _report(self, trainer: TrainerView) -> None:
        try:
            _post({"trainerStatus": self._status()})
        except Exception as error:  # of the network, the server or a file that is not there
            if not self._has_warned:
                self._has_warned = True
                trainer.log_line(
                    f"warning: the TrainJob's status is not reported: {type(error).__name__}: {error}"
                )

    def _status(self) -> dict[str, Any]:
        status: dict[str, Any] = {
            "metrics": [{"name": n, "value": f"{v:.6g}"} for n, v in sorted(self._metrics.items())],
            "lastUpdatedTime": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        seconds, step = self._last
        if self._is_complete:
            status |= {"progressPercentage": 100, "estimatedRemainingSeconds": 0}
        elif self._total:
            status["progressPercentage"] = min(int(100 * step / self._total), 100)
            if self._first is not None and step > self._first[1]:
                pace = (seconds - self._first[0]) / (step - self._first[1])
                left = round(max(self._total - step, 0) * pace)
                status["estimatedRemainingSeconds"] = min(left, _MOST_SECONDS)
        return status


class _NoRedirect(HTTPRedirectHandler):
    """The token is for the address that Kubeflow gave, and no other."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


def _post(content: dict[str, Any]) -> None:
    """Send it as JSON.

    Raises:
        ValueError: where the address is not one of HTTPS, the only one that the token is sent to.
        OSError: of the network, the server, or a file.
    """
    url = os.environ[_URL]
    if urlsplit(url).scheme != "https":
        raise ValueError(f"{_URL} is not an https address: {url}")
    headers = {
        "Authorization": f"Bearer {Path(os.environ[_TOKEN]).read_text().strip()}",
        "Content-Type": "application/json",
    }
    trusted = ssl.create_default_context(cafile=os.environ[_CERTIFICATE])
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=trusted), _NoRedirect)
    with opener.open(Request(url, json.dumps(content).encode(), headers), timeout=_SECONDS):
        pass
