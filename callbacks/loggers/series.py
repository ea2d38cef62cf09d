"""The rows of a ``metrics.jsonl`` as arrays, and as few points as a picture can show."""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
POSITION = ("step", "epoch", "time", "samples", "tokens")  # the keys of a row that say where it belongs
_LAST_STEP = 2**53  # what a float64 holds exactly


@dataclass(frozen=True, eq=False)
class Series:
    """One value over a run.

    Attributes:
        name: Its full name, such as ``val/loss``.
        x: By key of ``POSITION``, where its values belong. ``epoch`` is a fraction. Series of the same rows
            share this object.
        values: float64; NaN and infinities included.
    """

    name: str
    x: dict[str, Array]
    values: Array


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl``; what ``read_findings`` gives is skipped.

    A last line that a killed run left half-written is no row. Other lines that are none are skipped, with
    one warning for all of them.
    """
    rows, wrong = [], []
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        row = _row_of(line)
        if row is not None:
            rows.append(row)
        elif line.strip() and number < len(lines) and _finding_of(line) is None:
            wrong.append(number)
    if wrong:
        lines_are = "line that is no row:" if len(wrong) == 1 else "lines that are no rows, the first is"
        warnings.warn(f"{path}: skipped {len(wrong)} {lines_are} line {wrong[0]}", stacklevel=2)
    return rows


def read_findings(path: Path) -> list[dict[str, Any]]:
    """The mistakes in a ``metrics.jsonl``: ``step``, ``finding``, ``evidence`` and ``cure`` of each."""
    found = map(_finding_of, path.read_bytes().splitlines())
    return [one for one in found if one is not None]


def _finding_of(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b'{"step":') or b'"finding":' not in line:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    texts = ("finding", "evidence", "cure")
    is_whole = type(found.get("step")) is int and all(type(found.get(name)) is str for name in texts)
    return found if is_whole else None


def _row_of(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
        if type(row) is not dict or type(row["step"]) is not int or not 0 <= row["step"] <= _LAST_STEP:
            return None
        for value in row.values():
            if type(value) not in (float, int, str):
                return None
            float(value)
    except (ValueError, KeyError, OverflowError, RecursionError):
        return None
    return row


def read_series(rows: Sequence[dict[str, Any]]) -> list[Series]:
    """The series of a run, by the order of their first value.

    Args:
        rows: As ``read_rows`` returns them.
    """
    order = sorted(range(len(rows)), key=lambda index: rows[index]["step"])
    where: dict[str, list[int]] = defaultdict(list)
    values: dict[str, list[float]] = defaultdict(list)
    for place, index in enumerate(order):
        for name, value in rows[index].items():
            if name not in POSITION:
                where[name].append(place)
                values[name].append(float(value))
    columns = {key: _column(key, [rows[index] for index in order]) for key in POSITION}
    columns["epoch"] = _fractions_of_epochs(columns["step"], columns["epoch"])
    shared: dict[bytes, dict[str, Array]] = {}
    found = []
    for name, places in where.items():
        chosen = np.array(places, dtype=np.int64)
        if chosen.tobytes() not in shared:
            taken = {key: column[chosen] for key, column in columns.items()}
            shared[chosen.tobytes()] = {key: c for key, c in taken.items() if not np.isnan(c).all()}
        found.append(Series(name, shared[chosen.tobytes()], np.array(values[name])))
    return found


def _column(key: str, rows: list[dict[str, Any]]) -> Array:
    return np.array([row.get(key, np.nan) for row in rows], dtype=np.float64)


def _fractions_of_epochs(steps: Array, epochs: Array) -> Array:
    """Rows count whole epochs from 0; the steps between two of them are spread evenly."""
    if not len(steps) or np.isnan(epochs).any():
        return epochs
    fractions, begin, length = np.empty(len(steps)), 0.0, 0.0
    for epoch in np.unique(epochs):
        inside = epochs == epoch
        end = steps[inside].max()
        length = max(
            end - begin, length if epoch == epochs.max() else 0.0, 1.0
        )  # the last may be cut short
        fractions[inside] = epoch + (steps[inside] - begin) / length
        begin = end
    return fractions


def drawable(values: Array) -> Array:
    """The values a picture can show, those of float32: NaN for larger ones, 0 for smaller ones."""
    sizes = np.abs(values)
    return np.where(sizes < 3e38, np.where(sizes > 1e-37, values, 0.0), np.nan)


class Buckets(NamedTuple):
    """A curve in parts of equal width: where each is, its mean, and its extremes."""

    x: Array
    mean: Array
    low: Array
    high: Array


def bucketed(x: Array, y: Array, most: int) -> Buckets:
    """A curve as at most ``most`` points; as it is where it has no more.

    Values that cannot be drawn become NaN, and count in no mean beside others.

    Args:
        x: Ascending.
        y: As many values.
        most: The number of parts.
    """
    y = drawable(y)
    if len(x) <= most or x[-1] <= x[0]:
        return Buckets(x, y, y, y)
    part = np.minimum(((x - x[0]) / (x[-1] - x[0]) * most).astype(np.int64), most - 1)
    starts = np.flatnonzero(np.diff(part, prepend=-1))
    finite = np.isfinite(y)
    count = np.add.reduceat(finite.astype(np.float64), starts)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.add.reduceat(np.where(finite, y, 0.0), starts) / count
    low = np.minimum.reduceat(np.where(finite, y, np.inf), starts)
    high = np.maximum.reduceat(np.where(finite, y, -np.inf), starts)
    empty = count == 0
    centre = np.add.reduceat(x, starts) / np.diff(starts, append=len(x))
    return Buckets(centre, mean, np.where(empty, np.nan, low), np.where(empty, np.nan, high))
