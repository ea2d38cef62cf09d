"""TensorBoard event files, in tb/ of the run folder."""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .logger import Logger

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

_POSITION = {"step", "epoch", "time", "samples"}


class TensorBoard(Logger):
    """Writes every value as a scalar, without a thread of its own.

    TensorBoard is imported at the first write, not before.

    Args:
        most_bytes: Behind so many a long run writes every second row, of those with the same names; behind
            as many again every fourth, and so on.
    """

    def __init__(self, most_bytes: int = 64 * 2**20) -> None:
        self._most = most_bytes
        self._begin_series()
        self._folder: Path | None = None
        self._writer: Any = None
        self._event: Any = None
        self._resumed_at: int | None = None

    def _begin_series(self) -> None:
        self._bytes, self._every = 0, 1
        self._seen: Counter[tuple[str, ...]] = Counter()

    def on_fit_start(self, trainer: Trainer) -> None:
        if trainer.folder is not None and trainer.is_global_zero:
            self._folder = trainer.folder / "tb"
            self._resumed_at = trainer.global_step or None
            self._begin_series()

    def write(self, row: dict[str, float]) -> None:
        if self._folder is None:
            return
        if self._writer is None:
            self._open(self._folder)
        names = tuple(row)
        self._seen[names] += 1
        if (self._seen[names] - 1) % self._every:
            return
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
            self._every, self._bytes = 2 * self._every, 0

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

    def on_teardown(self, trainer: Trainer, stage: str) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = self._folder = None
