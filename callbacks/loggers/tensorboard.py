"""TensorBoard event files, in tb/ of the run folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .flat import flat_config
from .logger import Logger
from .media import Histogram, Image, Media, Table, Text

if TYPE_CHECKING:
    from ..trainer_view import TrainerView

_QUEUE = 1000  # rows; at tensorboard's default of 10, a row every step would wait for the disk
_FLUSH_SECONDS = 10
_ON_THE_AXES = ("step", "time")  # every event has both


class TensorBoard(Logger):
    """Writes every value as a scalar, through tensorboard's own ``EventFileWriter`` and its thread.

    Epochs, samples and tokens are scalars too: ``position/samples``. Images, histograms and texts are
    shown as such, tables as texts; captions are not shown. The configuration is the text ``config``, and a
    row of the HParams page with the last values. tensorboard is imported at the first write, not before.

    Args:
        folder: Where the files are; None: ``tb/`` of the run folder.

    Attributes:
        first_step: The number of the first step.

    Example:
        >>> trainer = Trainer(loggers="-tensorboard")  # all default loggers but this one
    """

    shows = (Image, Histogram, Table, Text)
    first_step = 1

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = folder
        self._folder: Path | None = None
        self._writer: Any = None
        self._event: Any = None
        self._resumed_at: int | None = None
        self._config: dict[str, Any] = {}

    def on_fit_start(self, trainer: TrainerView) -> None:
        if trainer.folder is not None and trainer.is_global_zero:
            self._folder = trainer.folder / "tb" if self.folder is None else Path(self.folder)
            self._resumed_at = trainer.global_step or None
            self._config = trainer.config

    def write(self, row: dict[str, float]) -> None:
        if self._folder is None:
            return
        # One event for the whole row: a fraction of the time of one event per value.
        event = self._new_event(row)
        for name, value in row.items():
            if name not in _ON_THE_AXES:
                event.summary.value.add(tag=self.tag(name), simple_value=value)
        self._writer.add_event(event)

    def tag(self, name: str) -> str:
        """What a value is called there."""
        return name if "/" in name else f"position/{name}"

    def write_media(self, row: dict[str, float], name: str, media: Media) -> None:
        if self._folder is None:
            return
        event = self._new_event(row)
        if isinstance(media, Image):
            height, width, channels = media.pixels.shape
            image = event.summary.value.add(tag=name).image
            image.height, image.width, image.colorspace = height, width, channels
            image.encoded_image_string = media.png()
        elif isinstance(media, Histogram):
            event.summary.CopyFrom(_histogram(name, media))
        else:
            event.summary.CopyFrom(
                _text(name, _markdown(media) if isinstance(media, Table) else media.text)
            )
        self._writer.add_event(event)

    def _new_event(self, row: dict[str, float]) -> Any:
        if self._writer is None:
            self._open()
        return self._event(wall_time=time.time(), step=int(row["step"]))

    def _open(self) -> None:
        import yaml
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event = Event
        self._writer = EventFileWriter(str(self._folder), _QUEUE, _FLUSH_SECONDS)
        if self._resumed_at is not None:
            # On this mark the reader purges what a killed run wrote after its checkpoint.
            purge = Event(wall_time=time.time(), step=self._resumed_at + self.first_step)
            purge.session_log.status = SessionLog.START
            self._writer.add_event(purge)
        text = yaml.safe_dump(self._config, sort_keys=False, allow_unicode=True)
        self._add(_text("config", "```yaml\n" + text + "```"), self._resumed_at or 0)

    def _add(self, summary: Any, step: int) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=summary))

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        writer, self._folder = self._writer, None
        if writer is not None:
            try:
                self._add_hparams(trainer)
            finally:
                self._writer = None
                writer.close()  # writes what is queued

    def _add_hparams(self, trainer: TrainerView) -> None:
        """A row of the HParams page: the settings, and which scalars are its metrics."""
        from torch.utils.tensorboard.summary import hparams

        settings = flat_config(self._config.get("trainer", {}))
        settings |= flat_config(self._config.get("module", {}).get("hparams", {}))
        judged = [name for name in trainer.metrics if not name.startswith(("lr/", "perf/"))]
        for summary in hparams(settings, dict.fromkeys(judged, 0.0)):
            self._add(summary, trainer.global_step)


def _text(name: str, text: str) -> Any:
    from torch.utils.tensorboard.summary import text as summary

    return summary(name, text)


def _markdown(table: Table) -> str:
    rows = [table.columns, ["---"] * len(table.columns), *table.rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows)


def _cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "\\|").replace("\n", "<br>")


def _histogram(name: str, histogram: Histogram) -> Any:
    from torch.utils.tensorboard.summary import histogram_raw

    edges, counts = histogram.edges, histogram.counts
    # A bucket of this format ends at its limit: an empty first one says where the second begins.
    return histogram_raw(
        name,
        min=edges[0],
        max=edges[-1],
        num=sum(counts),
        sum=histogram.total,
        sum_squares=histogram.sum_of_squares,
        bucket_limits=list(edges),
        bucket_counts=[0, *counts],
    )
