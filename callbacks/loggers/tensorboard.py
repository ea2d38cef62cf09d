"""TensorBoard event files, in tb/ of the run folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .logger import POSITION, Logger

if TYPE_CHECKING:
    from ..trainer_view import TrainerView

_QUEUE = 1000  # rows; at tensorboard's default of 10, a row every step would wait for the disk
_FLUSH_SECONDS = 10


class TensorBoard(Logger):
    """Writes every value as a scalar, through tensorboard's own ``EventFileWriter`` and its thread.

    tensorboard is imported at the first write, not before.

    Example:
        >>> trainer = Trainer(loggers=[TensorBoard(), JSONLogger()])
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._writer: Any = None
        self._event: Any = None
        self._resumed_at: int | None = None

    def on_fit_start(self, trainer: TrainerView) -> None:
        if trainer.folder is not None and trainer.is_global_zero:
            self._folder = trainer.folder / "tb"
            self._resumed_at = trainer.global_step or None

    def write(self, row: dict[str, float]) -> None:
        if self._folder is None:
            return
        if self._writer is None:
            self._open(self._folder)
        # One event for the whole row: a fraction of the time of one event per value.
        event = self._event(wall_time=time.time(), step=int(row["step"]))
        for name, value in row.items():
            if name not in POSITION:
                event.summary.value.add(tag=name, simple_value=value)
        self._writer.add_event(event)

    def _open(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event = Event
        self._writer = EventFileWriter(str(folder), _QUEUE, _FLUSH_SECONDS)
        if self._resumed_at is not None:
            # On this mark the reader purges what a killed run wrote after its checkpoint.
            purge = Event(wall_time=time.time(), step=self._resumed_at + 1)
            purge.session_log.status = SessionLog.START
            self._writer.add_event(purge)

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        writer, self._writer, self._folder = self._writer, None, None
        if writer is not None:
            writer.close()  # writes what is queued
