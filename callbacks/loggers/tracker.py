"""The base of loggers that send a run to an experiment tracker, and continue it there after a resume."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from .logger import Logger, values_of
from .media import Media

if TYPE_CHECKING:
    from ..trainer_view import TrainerView


class Tracker(Logger):
    """Opens a run of the tracker at the first row, in the thread that writes, and sends rows and media.

    ``<file_name>.json`` in the run folder keeps the tracker's id of the run and what was sent at the last
    step. A run that resumes in its folder continues the tracker's run; what it repeats of the steps after
    its checkpoint, with the same values, is not sent again. A run in a new folder is a new one.

    Attributes:
        file_name: Of that file.
    """

    file_name = "tracker"

    def __init__(self) -> None:
        self._active = self._is_open = False
        self._run_name = ""
        self._config: dict[str, Any] = {}
        self._sent = SentRows(None)
        self._error: BaseException | None = None

    @abstractmethod
    def open(self, name: str, config: dict[str, Any], run_id: str | None) -> str:
        """Begin a run of the tracker, or continue one. Called in a thread.

        Args:
            name: ``<name>/<n>``, as the run folder is called.
            config: The content of config.yaml.
            run_id: What this returned when the run began; None for a new run.

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
    def close(self, error: BaseException | None) -> None:
        """End the session; called after ``open`` only, when all rows are sent.

        Args:
            error: What ended the run; None where nothing failed. It may be resumed after either.
        """

    def on_fit_start(self, trainer: TrainerView) -> None:
        self._active, self._is_open, self._error = trainer.is_global_zero, False, None
        if self._active:
            folder = trainer.folder
            self._run_name = trainer.name if folder is None else f"{trainer.name}/{folder.name}"
            self._config = trainer.config
            self._sent = SentRows(None if folder is None else folder / f"{self.file_name}.json")

    def write(self, row: dict[str, float]) -> None:
        names = values_of(row)
        if self._begin(row, names):
            self.send(row)
            self._sent.add(int(row["step"]), names)

    def write_media(self, row: dict[str, float], name: str, media: Media) -> None:
        if self._begin(row, [name]):
            self.send_media(row, name, media)
            self._sent.add(int(row["step"]), [name])

    def _begin(self, row: dict[str, float], names: Any) -> bool:
        """Whether something is to be sent; the tracker's run is open then."""
        if not self._active or self._sent.has(int(row["step"]), names):
            return False
        if not self._is_open:
            self._sent.begin(self.open(self._run_name, self._config, self._sent.run_id))
            self._is_open = True
        return True

    def on_exception(self, trainer: TrainerView, error: BaseException) -> None:
        self._error = error

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        self._active = False
        if self._is_open:
            self._is_open = False
            try:
                self.close(self._error)
            except Exception as error:
                trainer.log_line(f"warning: {type(self).__name__} could not end its run: {error}")


class SentRows:
    """The tracker's id of a run and the last step that was sent, in a file that survives a kill.

    Args:
        path: The file; None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.run_id: str | None = None
        self._path = path
        self._step, self._marks = -1, list[int]()
        if path is not None and path.is_file():
            kept = json.loads(path.read_text(encoding="utf-8"))
            self.run_id, self._step, self._marks = kept["run_id"], kept["step"], kept["marks"]
        self._known_step, self._known_marks = self._step, set(self._marks)

    def has(self, step: int, names: Any) -> bool:
        """Whether values of these names were sent at this step, before this session."""
        if step == self._known_step:
            return _mark(names) in self._known_marks
        return step < self._known_step

    def begin(self, run_id: str) -> None:
        """The run is open under this id."""
        self.run_id = run_id
        self._write()

    def add(self, step: int, names: Any) -> None:
        """Values of these names were sent at a step."""
        if step != self._step:
            self._step = step
            self._marks.clear()
        self._marks.append(_mark(names))
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        text = json.dumps({"run_id": self.run_id, "step": self._step, "marks": self._marks})
        staging = self._path.with_suffix(".part")
        staging.write_text(text, encoding="utf-8")
        os.replace(staging, self._path)


def _mark(names: Any) -> int:
    return crc32("\0".join(sorted(names)).encode())
