"""metrics.csv: one row per line, one column per value."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .logger import Logger
from .series import POSITION

if TYPE_CHECKING:
    from ..trainer_view import TrainerView


class CSVLogger(Logger):
    """Writes ``metrics.csv`` into the run folder: a header, then a line per row; what a row lacks is empty.

    A row with a name that is new adds a column: the file is written again, with the new header. Names are
    mostly known after the first epoch. What a resumed run writes again is dropped first.

    Args:
        folder: Where the file is; None: the run folder.

    Attributes:
        first_step: The ``step`` of the first row that a step may have.

    Example:
        >>> trainer = Trainer(max_epochs=1, loggers=CSVLogger(), progress=False)
        >>> run = trainer.fit(Net(), train_loader)
        >>> print((run.folder / "metrics.csv").read_text().splitlines()[0])
        step,epoch,time,samples,train/loss,lr/SGD,perf/samples_per_second,train/loss_epoch
    """

    first_step = 1

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = folder
        self._path: Path | None = None
        self._columns: list[str] = []

    def on_fit_start(self, trainer: TrainerView) -> None:
        self._path, self._columns = None, []
        if trainer.folder is None or not trainer.is_global_zero:
            return
        rows, next_step = self._open(self.folder or trainer.folder), trainer.global_step + self.first_step
        if rows:
            self._rewrite([row for row in rows if int(row["step"]) < next_step])

    def _open(self, folder: str | Path) -> list[dict[str, Any]]:
        """Write into this folder from here on; the rows that are there already."""
        self._path = (Path(folder) / "metrics.csv").resolve()
        rows = self._read() if self._path.is_file() else []
        self._columns = list(rows[0]) if rows else []
        return rows

    def write(self, row: dict[str, float]) -> None:
        if self._path is None:
            return
        new = [name for name in row if name not in self._columns]
        if new:
            rows = self._read() if self._columns else []
            known = {*self._columns, *new}
            position = [name for name in POSITION if name in known]
            self._columns = position + [n for n in (*self._columns, *new) if n not in POSITION]
            self._rewrite([*rows, row])
            return
        with self._path.open("a", encoding="utf-8", newline="") as file:
            self._writer(file).writerow(row)

    def _read(self) -> list[dict[str, Any]]:
        """The rows of the file; a line that a killed run left half-written is none."""
        assert self._path is not None
        with self._path.open(encoding="utf-8", newline="") as file:
            rows: list[dict[str, Any]] = list(csv.DictReader(file))
        return [row for row in rows if None not in row.values() and None not in row]

    def _writer(self, file: Any) -> Any:
        return csv.DictWriter(file, self._columns, restval="", lineterminator="\n")

    def _rewrite(self, rows: list[dict[str, Any]]) -> None:
        """Replace the file by a rename: killed at any moment, it has the old rows or the new ones."""
        assert self._path is not None
        staging = self._path.with_suffix(".part")
        with staging.open("w", encoding="utf-8", newline="") as file:
            writer = self._writer(file)
            writer.writeheader()
            writer.writerows(rows)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staging, self._path)
