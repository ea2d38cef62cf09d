"""TensorBoard event files, in tb/ of the run folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .logger import Logger

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

_POSITION = {"step", "epoch", "time", "samples"}


class TensorBoard(Logger):
    """Writes every value as a scalar. TensorBoard is imported at the first write, not before."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._writer: Any = None
        self._resumed_at: int | None = None

    def on_fit_start(self, trainer: Trainer) -> None:
        if trainer.folder is not None and trainer.is_global_zero:
            self._folder = trainer.folder / "tb"
            self._resumed_at = trainer.global_step or None

    def write(self, row: dict[str, float]) -> None:
        if self._folder is None:
            return
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._writer is None:
            self._writer = EventFileWriter(str(self._folder))
            if self._resumed_at is not None:
                # What a killed run wrote behind its checkpoint is purged by the reader on this mark.
                purge = Event(wall_time=time.time(), step=self._resumed_at + 1)
                purge.session_log.status = SessionLog.START
                self._writer.add_event(purge)
        # One event for the whole row: a tenth of the time of one event per value.
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in row.items()
            if name not in _POSITION
        ]
        event = Event(wall_time=time.time(), step=int(row["step"]), summary=Summary(value=values))
        self._writer.add_event(event)

    def on_teardown(self, trainer: Trainer, stage: str) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = self._folder = None
