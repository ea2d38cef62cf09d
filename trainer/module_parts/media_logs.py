"""Logging images, histograms, tables and texts, as methods of a module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...callbacks.loggers.media import (
    Histogram,
    Image,
    Media,
    Table,
    Text,
    to_histogram,
    to_image,
    to_table,
)


class MediaLogs:
    """What rank 0 logs is written; other ranks may call the methods too, or not.

    It reaches the loggers that can show it; of the others each says once that it cannot. Names get their
    phase in front, as scalars do.
    """

    def _log_media(self, name: str, kind: type[Media], make: Callable[[], Media]) -> None:
        raise NotImplementedError

    def log_image(self, name: str, image: Any, *, caption: str = "") -> None:
        """Log a picture.

        Args:
            name: As ``log`` takes it.
            image: A tensor of shape (channels, height, width), or (images, channels, height, width), which
                is drawn as a grid; (height, width) is grey. An array with the channels last, a matplotlib
                figure, a PIL image. Floats from 0 to 1, or uint8.
            caption: A line that belongs to it.

        Raises:
            PacelineError: for anything else; on rank 0.

        Example:
            >>> class Looks(Net):
            ...     def validation_step(self, batch):
            ...         self.log_image("inputs", batch[0].sigmoid())
            >>> run = trainer.fit(Looks(), train_loader, val_loader)
            >>> next((run.folder / "media").rglob("*.png")).name
            'step-00000004.png'
        """
        self._log_media(name, Image, lambda: to_image(image, caption))

    def log_histogram(self, name: str, values: Any, *, bins: int = 64) -> None:
        """Log how the values of a tensor are distributed: those that rank 0 passes.

        Args:
            name: As ``log`` takes it.
            values: A tensor, an array or a sequence of numbers, of any shape. Of a sharded weight the part
                of rank 0 counts.
            bins: So many of one width, from the smallest to the largest finite value.

        Raises:
            PacelineError: for anything else; on rank 0.

        Example:
            >>> class Weights(Callback):
            ...     def on_train_epoch_end(self, trainer):
            ...         trainer.module.log_histogram("layer", trainer.module.layer.weight)
            >>> run = Trainer(max_epochs=1, callbacks=Weights(), progress=False).fit(Net(), train_loader)
        """
        self._log_media(name, Histogram, lambda: to_histogram(values, bins))

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Any]) -> None:
        """Log a table.

        Args:
            name: As ``log`` takes it.
            columns: Their names.
            rows: Each a sequence with one cell per column, or a mapping by the column's name. Cells are
                strings, numbers, booleans or None; anything else is shown as its text.

        Raises:
            PacelineError: for a row with more or fewer cells than there are columns; on rank 0.

        Example:
            >>> class Shown(Net):
            ...     def validation_step(self, batch):
            ...         self.log_table("targets", ["first", "last"], [(batch[1][0], batch[1][-1])])
            >>> run = trainer.fit(Shown(), train_loader, val_loader)
        """
        self._log_media(name, Table, lambda: to_table(columns, rows))

    def log_text(self, name: str, text: str) -> None:
        """Log a text; some loggers show it as Markdown.

        Args:
            name: As ``log`` takes it.
            text: Of any length.

        Example:
            >>> class Reads(Net):
            ...     def on_train_epoch_end(self, trainer):
            ...         self.log_text("sample", "to be, or not to be")
            >>> run = trainer.fit(Reads(), train_loader)
        """
        self._log_media(name, Text, lambda: Text(str(text)))
