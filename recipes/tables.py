"""Tables: rows of texts by the column's name, and the numbers that a network takes in their place."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline import PacelineError
from paceline.errors import nearest

Rows = Sequence[Mapping[str, str]]
MISSING = ("", "NA", "NaN", "nan", "?")


@dataclass(frozen=True)
class Columns:
    """What the columns of a table hold.

    Args:
        target: The column to predict.
        numbers: Mean and standard deviation of each column of numbers.
        categories: The values of each other column.
        classes: The values of the target; empty where it is a number.
        target_scale: Its mean and standard deviation where it is a number.
    """

    target: str
    numbers: Mapping[str, Sequence[float]]
    categories: Mapping[str, Sequence[str]]
    classes: Sequence[str]
    target_scale: Sequence[float] = (0.0, 1.0)

    @classmethod
    def of(cls, rows: Rows, target: str, others: Rows = ()) -> Columns:
        """A column in which all values are numbers is one of numbers.

        Args:
            rows: To train on.
            target: The column to predict.
            others: Rows that only say which classes there are.
        """
        texts = {name: [row[name] for row in rows] for name in rows[0]}
        known = {name: [text for text in column if text not in MISSING] for name, column in texts.items()}
        numbers = {name: scale_of(column) for name, column in known.items() if all(map(is_number, column))}
        values = {name: sorted(set(column)) for name, column in known.items() if name not in numbers}
        scale, _ = numbers.pop(target, (0.0, 1.0)), values.pop(target, None)
        every = {row[target] for row in (*rows, *others)}
        classes = [] if all(map(is_number, every)) else sorted(every)
        return cls(target, numbers, values, classes, scale)

    def arguments(self) -> dict[str, Any]:
        """What ``Columns(**arguments)`` makes it from."""
        return asdict(self)

    def inputs(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Numbers (n, columns) of mean 0 and deviation 1, NaN where missing, and categories (n, columns).

        Category 0 is a value that is missing or was not there in training.
        """
        scaled = [
            [(number_of(row[name]) - mean) / deviation for name, (mean, deviation) in self.numbers.items()]
            for row in rows
        ]
        places = {name: {text: k + 1 for k, text in enumerate(v)} for name, v in self.categories.items()}
        chosen = [[place.get(row[name], 0) for name, place in places.items()] for row in rows]
        shape = len(rows), -1
        return (
            torch.tensor(scaled, dtype=torch.float32).reshape(shape),
            torch.tensor(chosen, dtype=torch.int64).reshape(shape),
        )

    def target_of(self, rows: Rows) -> Tensor:
        """The class (n) of each row, int64; or its number (n), of mean 0 and deviation 1.

        Raises:
            PacelineError: for a target that is missing, or was not there in training.
        """
        texts = [row[self.target] for row in rows]
        if self.classes:
            places = {text: k for k, text in enumerate(self.classes)}
            unknown = [text for text in texts if text not in places]
            if unknown:
                raise PacelineError(
                    f"a row to validate on has a {self.target!r} that no row to train on has",
                    got=unknown[0],
                    allowed=", ".join(self.classes),
                )
            return torch.tensor([places[text] for text in texts])
        mean, deviation = self.target_scale
        return torch.tensor([(number_of(text) - mean) / deviation for text in texts], dtype=torch.float32)


def is_number(text: str) -> bool:
    """Whether it is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def number_of(text: str) -> float:
    """The number; NaN where it is missing."""
    return math.nan if text in MISSING else float(text)


def scale_of(texts: Sequence[str]) -> tuple[float, float]:
    """Mean and standard deviation; (0, 1) without values, and a deviation of 1 where all are the same."""
    values = [float(text) for text in texts] or [0.0]
    return statistics.fmean(values), statistics.pstdev(values) or 1.0


def read_table(path: Path, target: str) -> list[dict[str, str]]:
    """The rows of a CSV file with the names of its columns in the first line, in which the target is known.

    Raises:
        PacelineError: for a file that cannot be read, rows of another length, or without the target.
    """
    try:
        with path.expanduser().open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            names = list(reader.fieldnames or ())
            rows = []
            for row in reader:
                if None in row or None in row.values():
                    got = f"a row of another length than the {len(names)} names in the first line"
                    raise PacelineError("the table is uneven", where=f"{path}:{reader.line_num}", got=got)
                rows.append({name: text.strip() for name, text in row.items()})
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PacelineError("the table cannot be read", where=str(path), got=str(error)) from None
    if target not in names:
        raise PacelineError(
            f"the table has no column {target!r}",
            where=str(path),
            allowed=", ".join(names),
            fix=f"target={nearest(target, names) or 'NAME'}",
        )
    known = [row for row in rows if row[target] not in MISSING]
    if len(known) < 2:
        raise PacelineError(f"too few rows with a {target!r}", where=str(path), got=len(known))
    return known


def breast_cancer() -> list[dict[str, str]]:
    """The 569 rows of scikit-learn's copy of a data set of Wisconsin: 30 numbers, and what was found."""
    try:
        from sklearn.datasets import load_breast_cancer
    except ImportError:
        raise PacelineError(
            "this table needs scikit-learn", fix="pip install 'paceline[recipes]'"
        ) from None
    data = load_breast_cancer()
    names = [str(name) for name in data.feature_names]
    return [
        dict(zip(names, map(str, row), strict=True)) | {"target": str(data.target_names[found])}
        for row, found in zip(data.data.tolist(), data.target.tolist(), strict=True)
    ]
