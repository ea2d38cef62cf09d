"""metrics.jsonl: one flat JSON object a line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from .logger import Logger

if TYPE_CHECKING:
    from .trainer_view import TrainerView


class JSONLogger(Logger):
    """Appends each row to ``metrics.jsonl`` in the run folder; NaN and infinities become strings.

    Args:
        most_bytes: Where the file of a long run comes to that, about half of its rows are left out, of
            those with the names that fill it. What stays is evenly spread, the first and the last included.
    """

    def __init__(self, most_bytes: int = 64 * 2**20) -> None:
        self._most = most_bytes
        self._file: IO[str] | None = None
        self._bytes = 0

    def on_fit_start(self, trainer: TrainerView) -> None:
        if trainer.folder is None or not trainer.is_global_zero:
            return
        path = trainer.folder / "metrics.jsonl"
        if path.exists():
            _cut_behind(path, trainer.global_step)
        self._open(path)

    def write(self, row: dict[str, float]) -> None:
        if self._file is not None:
            safe = {k: v if math.isfinite(v) else str(v) for k, v in row.items()}
            line = json.dumps(safe) + "\n"
            self._file.write(line)
            self._bytes += len(line)  # it is ASCII
            if self._bytes > self._most:
                self._thin(Path(self._file.name))

    def _open(self, path: Path) -> None:
        opened = path.resolve().open("a", buffering=1, encoding="utf-8")
        if self._file is not None:
            self._file.close()
        self._file, self._bytes = opened, path.stat().st_size

    def _thin(self, path: Path) -> None:
        """Write the file anew with half of its rows."""
        thinner = path.with_suffix(".part")
        try:
            thinner.write_text("".join(json.dumps(row) + "\n" for row in thinned(read_rows(path))))
            thinner.replace(path)
            self._open(path)
        except OSError:
            thinner.unlink(missing_ok=True)
            raise
        finally:  # not again at the next row, where rows are all of different names or the disk is full
            if self._bytes > self._most * 3 / 4:
                self._most = 2 * self._bytes

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl``; a last line that a killed run left half-written is no row."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """About half of the rows: of those with the same names the first of each so many steps, and the last.

    So many is a power of two: what is thinned again stays evenly spread. Rare names stay as they are.
    """
    steps: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        steps.setdefault(tuple(row), []).append(row["step"])
    rare = len(rows) / len(steps) / 2
    widths = {}
    for names, own in steps.items():
        gap = 2 * (max(own) - min(own)) / len(own)
        widths[names] = 1 if len(own) < rare else 2 ** math.ceil(math.log2(max(gap, 1)))
    left = {names: len(own) for names, own in steps.items()}
    stretches: dict[tuple[str, ...], int] = {}
    kept = []
    for row in rows:
        names = tuple(row)
        stretch = row["step"] // widths[names]
        left[names] -= 1
        if stretch != stretches.get(names) or not left[names]:
            kept.append(row)
        stretches[names] = stretch
    return kept


def _cut_behind(path: Path, step: int) -> None:
    """Drop the rows behind ``step``: a resumed run writes them again."""
    kept = [json.dumps(row) + "\n" for row in read_rows(path) if row["step"] <= step]
    path.write_text("".join(kept), encoding="utf-8")
