"""The base of loggers that send a run to an experiment tracker, and continue it there after a resume."""

from __future__ import annotations

import importlib
import importlib.util
import random
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...errors import PacelineError
from .logger import Logger, values_of
from .media import Media
from .sent_rows import SentRows

if TYPE_CHECKING:
    from ..trainer_view import TrainerView

Ended = Literal["finished", "failed", "killed"]
CLOSE_SECONDS = 30


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is given of a run.

    Attributes:
        name: ``<project>/<n>``, as the run folder is called; ``<project>`` where nothing is written.
        project: The name of the run: that of the folder's parent.
        folder: The run folder; None where nothing is written.
        config: The content of config.yaml.
        run_id: What ``open`` returned when the run began; None for a new run.
    """

    name: str
    project: str
    folder: Path | None
    config: dict[str, Any]
    run_id: str | None


class Tracker(Logger):
    """Opens a run of the tracker at the first row, in the thread that writes, and sends rows and media.

    ``<package>.json`` in the run folder (``<package>-2.json`` of a second one) keeps the tracker's id of
    the run and what was sent at the last step. A run that resumes in its folder continues the tracker's
    run; what it repeats of the steps after its checkpoint, with the same values, is not sent again. A run
    in a new folder is a new one.

    Attributes:
        package: What has to be installed.
        place: Where the run is to be seen; logged when it ends.
    """

    package = ""
    place = ""

    def __init__(self) -> None:
        self._active = self._is_open = False
        self._lock = threading.Lock()  # of these two
        self._run = TrackedRun("", "", None, {}, None)
        self._sent = SentRows(None)
        self._error: BaseException | None = None
        self._ended: Ended = "finished"

    @abstractmethod
    def open(self, run: TrackedRun) -> str:
        """Begin a run of the tracker, or continue one. Called in a thread.

        Returns:
            The tracker's id of the run.
        """

    @abstractmethod
    def send(self, row: dict[str, float]) -> None:
        """Send a row. Called in a thread."""

    def send_media(self, row: dict[str, float], name: str, media: Media) -> None:
        """Send an image, histogram, table or text of a kind in ``shows``. Called in a thread."""
        raise NotImplementedError(f"{type(self).__name__} has send_media for each kind in shows")

    @abstractmethod
    def close(self, ended: Ended) -> None:
        """End the session; called after ``open`` only, when all rows are sent. Called in a thread.

        Args:
            ended: ``"failed"`` after an error, ``"killed"`` after a signal. The run may be resumed after
                either.
        """

    def on_fit_start(self, trainer: TrainerView) -> None:
        self._require_package()
        self._active, self._is_open, self._error = trainer.is_global_zero, False, None
        if not self._active:
            return
        try:
            # Not in the thread: a loader's worker that is forked during an import keeps the module's lock.
            with _generators_kept():
                importlib.import_module(self.package)
        except Exception as error:
            raise self._missing(f"{type(error).__name__}: {error}") from error
        folder, config = trainer.folder, trainer.config
        name = str(config["name"])
        self.place = ""
        self._sent = SentRows(None if folder is None else folder / self._file_name(trainer))
        self._run = TrackedRun(
            name if folder is None else f"{name}/{folder.name}",
            name,
            folder,
            config,
            self._sent.run_id,
        )

    def _file_name(self, trainer: TrainerView) -> str:
        """One for each, where a run has several trackers of a package."""
        others = [
            one for one in trainer.callbacks if isinstance(one, Tracker) and one.package == self.package
        ]
        number = next((n for n, one in enumerate(others, 1) if one is self), 1)
        return f"{self.package}.json" if number == 1 else f"{self.package}-{number}.json"

    def _require_package(self) -> None:
        found = importlib.util.find_spec(self.package)
        if found is None or found.origin is None:  # without an origin: a folder of that name, no package
            raise self._missing("it is not installed")

    def _missing(self, why: str) -> PacelineError:
        return PacelineError(
            f"{type(self).__name__} needs the package {self.package}",
            code="package-missing",
            got=why,
            fix=f"pip install {self.package}, or pip install 'paceline[{self.package}]'",
        )

    def write(self, row: dict[str, float]) -> None:
        self._send_once(row, values_of(row), lambda: self.send(row))

    def write_media(self, row: dict[str, float], name: str, media: Media) -> None:
        kind = type(media).__name__
        self._send_once(row, [f"{kind} {name}"], lambda: self.send_media(row, name, media))

    def _send_once(self, row: dict[str, float], names: Iterable[str], send: Callable[[], None]) -> None:
        step, names = int(row["step"]), list(names)
        if not self._active or self._sent.has(step, names) or not self._opened():
            return
        # First: after a kill in between the tracker misses a row, and has none twice.
        self._sent.add(step, names)
        try:
            send()
        except BaseException:
            self._sent.take_back()
            raise

    def _opened(self) -> bool:
        """Open the tracker's run, where that is still to be done. Whether it is open."""
        if self._is_open:
            return True
        self._sent.begin(self.open(self._run))
        with self._lock:
            self._is_open = self._active
        if not self._is_open:  # the fit has ended meanwhile
            self.close(self._ended)
        return self._is_open

    def on_exception(self, trainer: TrainerView, error: BaseException) -> None:
        self._error = error

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        killed = trainer.interrupted or isinstance(self._error, KeyboardInterrupt)
        self._ended = "killed" if killed else "finished" if self._error is None else "failed"
        with self._lock:
            is_open, self._active, self._is_open = self._is_open, False, False
        if not is_open:
            return
        who, failed = type(self).__name__, list[Exception]()
        thread = threading.Thread(target=self._close, args=(failed,), name="tracker", daemon=True)
        thread.start()
        thread.join(CLOSE_SECONDS)
        if thread.is_alive():
            trainer.log_line(f"warning: {who} still sends after {CLOSE_SECONDS} s and is not waited for")
        for error in failed:
            trainer.log_line(f"warning: {who} could not end its run: {type(error).__name__}: {error}")
        if self.place:
            trainer.log_line(f"{who}: {self.place}")

    def _close(self, failed: list[Exception]) -> None:
        try:
            self.close(self._ended)
        except Exception as error:
            failed.append(error)


@contextmanager
def _generators_kept() -> Iterator[None]:
    """What is drawn inside is not missing outside: packages draw random numbers while they are imported."""
    ours, of_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(of_numpy)
