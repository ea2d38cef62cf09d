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
        numbers = {
            name: scale_of(column)
            for name, column in known.items()
            if column and all(map(is_number, column))
        }
        values = {name: sorted(set(column)) for name, column in known.items() if name not in numbers}
        scale, _ = numbers.pop(target, (0.0, 1.0)), values.pop(target, None)
        every = [row[target] for row in (*rows, *others)]
        texts_among = [text for text in every if not is_number(text)]
        if 0 < len(texts_among) < len(every) / 10:
            raise PacelineError(
                f"{target!r} is a number in {len(every) - len(texts_among)} of {len(every)} rows",
                code="records-unusable",
                got=f"{texts_among[0]!r} among them",
                fix="a table where all are numbers, or empty",
            )
        classes = sorted(set(every)) if texts_among else []
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
        return (
            torch.tensor(scaled, dtype=torch.float32).reshape(len(rows), len(self.numbers)),
            torch.tensor(chosen, dtype=torch.int64).reshape(len(rows), len(places)),
        )

    def target_of(self, rows: Rows) -> Tensor:
        """The class (n) of each row, int64; or its number (n), of mean 0 and deviation 1.

        Raises:
            PacelineError: for one that is no number, or none of the classes.
        """
        texts = [row[self.target] for row in rows]
        places = {text: k for k, text in enumerate(self.classes)}
        unknown = [text for text in texts if not (text in places if self.classes else is_number(text))]
        if unknown:
            allowed = ", ".join(self.classes) or "a number"
            raise PacelineError(
                f"a {self.target!r} is not known", code="records-unusable", got=unknown[0], allowed=allowed
            )
        if self.classes:
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
    """The number; NaN where there is none."""
    return float(text) if is_number(text) else math.nan


def scale_of(texts: Sequence[str]) -> tuple[float, float]:
    """Mean and standard deviation, which is 1 where all are the same."""
    values = [float(text) for text in texts]
    return statistics.fmean(values), statistics.pstdev(values) or 1.0


def read_table(path: Path, target: str) -> list[dict[str, str]]:
    """The rows of a CSV file with the names of its columns in the first line, in which the target is known.

    Raises:
        PacelineError: for a file that cannot be read, rows of another length, or without the target.
    """
    try:
        with path.expanduser().open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            reader.fieldnames = names = [name.strip() for name in reader.fieldnames or ()]
            if len(set(names)) < len(names):
                raise PacelineError(
                    "two columns have one name",
                    code="records-unusable",
                    where=str(path),
                    got=", ".join(names),
                )
            rows = []
            for row in reader:
                if None in row or None in row.values():
                    got = f"a row of another length than the {len(names)} names in the first line"
                    raise PacelineError(
                        "the table is uneven",
                        code="records-unusable",
                        where=f"{path}:{reader.line_num}",
                        got=got,
                    )
                rows.append({name: text.strip() for name, text in row.items()})
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PacelineError(
            "the table cannot be read", code="records-unusable", where=str(path), got=str(error)
        ) from None
    if target not in names:
        raise PacelineError(
            f"the table has no column {target!r}",
            code="records-unusable",
            where=str(path),
            allowed=", ".join(names),
            fix=f"target={nearest(target, names) or 'NAME'}",
        )
    known = [row for row in rows if row[target] not in MISSING]
    if len(known) < 2:
        raise PacelineError(
            f"too few rows with a {target!r}", code="too-few-samples", where=str(path), got=len(known)
        )
    return known


def breast_cancer() -> list[dict[str, str]]:
    """The 569 rows of scikit-learn's copy of a data set of Wisconsin: 30 numbers, and what was found."""
    try:
        from sklearn.datasets import load_breast_cancer
    except ImportError:
        raise PacelineError(
            "this table needs scikit-learn", code="package-missing", fix="pip install 'paceline[recipes]'"
        ) from None
    data = load_breast_cancer()
    names = [str(name) for name in data.feature_names]
    return [
        dict(zip(names, map(str, row), strict=True)) | {"target": str(data.target_names[found])}
        for row, found in zip(data.data.tolist(), data.target.tolist(), strict=True)
    ]
