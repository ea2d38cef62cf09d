"""TensorBoard event files, in tb/ of the run folder."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .logger import Logger

if TYPE_CHECKING:
    from .trainer_view import TrainerView

_POSITION = {"step", "epoch", "time", "samples"}


@dataclass
class _Series:
    """Rows with the same names: how many came, every which is written, how many were of late."""

    seen: int = 0
    every: int = 1
    written: int = 0


class TensorBoard(Logger):
    """Writes every value as a scalar, without a thread of its own.

    TensorBoard is imported at the first write, not before.

    Args:
        most_bytes: Behind so many a long run writes every second row, of those with the names that fill
            the file; behind as many again every fourth, and so on.
    """

    def __init__(self, most_bytes: int = 64 * 2**20) -> None:
        self._most = most_bytes
        self._begin_series()
        self._folder: Path | None = None
        self._writer: Any = None
        self._event: Any = None
        self._resumed_at: int | None = None

    def _begin_series(self) -> None:
        self._bytes = 0
        self._series: dict[tuple[str, ...], _Series] = {}

    def on_fit_start(self, trainer: TrainerView) -> None:
        if trainer.folder is not None and trainer.is_global_zero:
            self._folder = trainer.folder / "tb"
            self._resumed_at = trainer.global_step or None
            self._begin_series()

    def write(self, row: dict[str, float]) -> None:
        if self._folder is None:
            return
        if self._writer is None:
            self._open(self._folder)
        series = self._series.setdefault(tuple(row), _Series())
        series.seen += 1
        if (series.seen - 1) % series.every:
            return
        series.written += 1
        # One event for the whole row: a fraction of the time of one event per value.
        event = self._event(wall_time=time.time(), step=int(row["step"]))
        for name, value in row.items():
            if name not in _POSITION:
                event.summary.value.add(tag=name, simple_value=value)
        content = event.SerializeToString()
        self._writer.write(content)
        self._writer.flush()
        self._bytes += len(content)
        if self._bytes > self._most:
            self._write_less()

    def _write_less(self) -> None:
        usual = sum(series.written for series in self._series.values()) / len(self._series)
        for series in self._series.values():
            if series.written >= usual / 2:
                series.every *= 2
            series.written = 0
        self._bytes = 0

    def _open(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(exist_ok=True)
        self._event = Event
        now = time.time()
        path = folder / f"events.out.tfevents.{now:.6f}.{platform.node()}.{os.getpid()}"
        self._writer = RecordWriter(path.open("wb"))
        self._writer.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
        if self._resumed_at is not None:
            # What a killed run wrote behind its checkpoint is purged by the reader on this mark.
            purge = Event(wall_time=now, step=self._resumed_at + 1)
            purge.session_log.status = SessionLog.START
            self._writer.write(purge.SerializeToString())

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = self._folder = None
