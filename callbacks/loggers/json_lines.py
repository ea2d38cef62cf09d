"""metrics.jsonl: one flat JSON object a line."""

from __future__ import annotations

import errno
import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..checks.checks import Checks
from .logger import Logger
from .media import Histogram, Image, Media, Table, Text
from .media_folder import MediaFolder
from .series import POSITION, read_findings, read_rows

if TYPE_CHECKING:
    from ..trainer_view import TrainerView


class JSONLogger(Logger):
    """Appends each row to ``metrics.jsonl`` in the run folder; NaN and infinities become strings.

    What ``Checks`` has found is a line too, before the next row, and none of ``Run.rows``: its keys are
    ``step``, ``epoch``, ``time``, ``samples``, ``finding``, ``evidence`` and ``cure``.
    Images, histograms, tables and texts are files: ``media/<name>/step-<n>.png``, ``.json``, ``.csv``,
    ``.txt``.

    Example:
        >>> only_it = ["-tensorboard", "-curves"]
        >>> trainer = Trainer(max_epochs=1, loggers=only_it, progress=False)
        >>> run = trainer.fit(Net(), train_loader)
        >>> [row["step"] for row in run.rows]
        [1, 4]
    """

    background = False  # a line of a local file
    shows = (Image, Histogram, Table, Text)

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file: IO[bytes] | None = None
        self._media: MediaFolder | None = None
        self._position: dict[str, Any] = {}
        self._checks: list[Checks] = []
        self._found: set[str] = set()

    def on_fit_start(self, trainer: TrainerView) -> None:
        self._path = None
        if trainer.folder is None or not trainer.is_global_zero:
            return
        self._path = path = trainer.folder.resolve() / "metrics.jsonl"
        self._position, self._found = {"step": trainer.global_step}, set()
        self._checks = [one for one in trainer.callbacks if isinstance(one, Checks)]
        if path.exists():  # a link becomes a file: what it leads to is not rewritten
            keep_rows_until(path, trainer.global_step)
            self._found = {one["finding"] for one in read_findings(path)}
        else:
            path.unlink(missing_ok=True)
        self._media = MediaFolder(path.with_name("media"))
        self._media.keep_until(trainer.global_step)
        self._file = path.open("ab", buffering=0)

    def write(self, row: dict[str, float]) -> None:
        self._position = {name: row[name] for name in POSITION if name in row}
        self._write_findings()
        self._append({k: v if math.isfinite(v) else str(v) for k, v in row.items()})

    def _write_findings(self) -> None:
        for one in (one for checks in self._checks for one in checks.findings):
            if one.name not in self._found:
                found = {"finding": one.name, "evidence": one.evidence, "cure": one.cure}
                self._append(self._position | found)
                self._found.add(one.name)

    def _append(self, values: dict[str, Any]) -> None:
        if self._file is None:
            return
        line = (json.dumps(values) + "\n").encode()
        size, written = os.fstat(self._file.fileno()).st_size, 0
        try:
            written = self._file.write(line)
            if written < len(line):
                raise OSError(errno.ENOSPC, "No space left on device")
        except OSError:
            if written:  # a row that is cut would spoil the next one
                self._file.truncate(size)
            raise

    def write_media(self, row: dict[str, float], name: str, media: Media) -> None:
        if self._file is not None and self._media is not None:
            self._media.write(int(row["step"]), name, media)

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        if self._path is None or stage not in ("fit", "test"):
            return
        with suppress(OSError):  # no room, or the folder is gone: the log has the findings as well
            self._file = self._file or self._path.open("ab", buffering=0)
            self._write_findings()
        if self._file is not None:
            self._file.close()
            self._file = None


def keep_rows_until(path: Path, step: int) -> None:
    """Drop the rows and findings after ``step``, which a resumed run writes again.

    The file is replaced by a rename: killed at any moment, it has all of its rows or those to be kept.
    """
    lines = [*read_findings(path), *read_rows(path)]
    text = "".join(json.dumps(line) + "\n" for line in lines if line["step"] <= step)
    staging = path.with_suffix(".part")
    try:
        with staging.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staging, path)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise
