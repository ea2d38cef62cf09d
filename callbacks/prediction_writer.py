"""Predictions as a table in one file, a row for each sample."""

from __future__ import annotations

import csv
import heapq
import json
import operator
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

from torch import Tensor

from ..common.argument_checks import SWITCH, Kind, check_arguments
from ..errors import PacelineError, shown
from .base import Callback

if TYPE_CHECKING:
    from .trainer_view import TrainerView


def _file_name() -> Any:
    from pydantic import Field

    return Annotated[str, Field(strict=True, pattern=r"[^/]\.(jsonl|csv)$")]


_PATH = Kind(_file_name, "a file whose name ends in .jsonl or .csv")
_FIELDS = Kind(lambda: Callable[..., Any] | None, "a function of (output, batch), or None")


class PredictionWriter(Callback):
    """Writes what ``trainer.predict`` computes to one JSON Lines or CSV file, a row for each sample.

    Rows are in the order of the dataset, on any number of ranks, each sample once: ``index`` is the
    sample's in the dataset; a running number where the data has none, such as a stream. The other columns
    are the output's: of a tensor ``prediction``, of a dict its keys. Values are numbers, or lists where a
    sample has several (in CSV as JSON); NaN is written as ``NaN``.

    Each rank writes a part beside ``path``, in a folder that all of them see, and rank 0 merges them:
    memory holds no more than a batch, and the file appears when it is complete. After a signal there is
    none. Use it with ``trainer.predict(module, data, keep=False)`` and one dataloader.

    Args:
        path: The file; its name ends in ``.jsonl`` or ``.csv``.
        fields: For outputs that are no tensors (one row for each sample) nor dicts of those or of lists: a
            function of (output, batch) that returns a dict for each sample.
        overwrite: Replace a file that exists.

    Raises:
        PacelineError: for arguments that are not right; in ``predict`` for a file that exists, and for
            outputs that are not a row for each sample.

    Example:
        >>> writer = PredictionWriter("predictions.jsonl")
        >>> outputs = Trainer(callbacks=writer, progress=False).predict(Net(), val_loader, keep=False)
        >>> print(open("predictions.jsonl").readline())
        {"index": 0, "prediction": [...]}
        <BLANKLINE>
    """

    def __init__(
        self,
        path: str | Path,
        fields: Callable[[Any, Any], list[dict[str, Any]]] | None = None,
        overwrite: bool = False,
    ) -> None:
        check_arguments(
            "PredictionWriter",
            path=(str(path) if isinstance(path, Path) else path, _PATH),
            fields=(fields, _FIELDS),
            overwrite=(overwrite, SWITCH),
        )
        self.path = Path(path).expanduser().absolute()  # the process may change its folder
        self.fields, self.overwrite = fields, overwrite
        self._file: IO[str] | None = None
        self._part = self.path
        self._last_batch, self._last_key, self._sorted = -1, [-1], True

    def on_setup(self, trainer: TrainerView, stage: str) -> None:
        if stage == "predict":
            trainer.ranks.on_rank_zero(self._check)

    def _check(self) -> None:
        if self.path.exists() and not self.overwrite:
            raise PacelineError(
                "PredictionWriter does not overwrite a file",
                code="file-exists",
                where=str(self.path),
                fix="give another path, delete this file, or PredictionWriter(..., overwrite=True)",
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def on_predict_start(self, trainer: TrainerView) -> None:
        self._part = self._part_of(trainer.rank)
        self._file = self._part.open("w", encoding="utf-8")
        self._last_batch, self._last_key, self._sorted = -1, [-1], True

    def _part_of(self, rank: int) -> Path:
        return self.path.with_name(f".{self.path.name}.part{rank}")

    def on_predict_step_end(self, trainer: TrainerView, output: Any, batch: Any, batch_idx: int) -> None:
        assert self._file is not None
        if trainer.ranks.tensor_rank:
            return  # another rank has the same samples
        if batch_idx <= self._last_batch:
            raise PacelineError(
                "PredictionWriter writes the predictions of one dataloader, and there are several",
                code="predictions-not-writable",
                fix="call predict for each of them, with a PredictionWriter for each",
            )
        self._last_batch = batch_idx
        indices = trainer.loop.sample_indices
        rows = _rows(output) if self.fields is None else self.fields(output, batch)
        _check_rows(rows, len(indices))
        for number, row in enumerate(rows):
            index = _number(indices[number]) if indices else None
            key = [batch_idx, trainer.rank, number] if index is None else [index]
            self._sorted, self._last_key = self._sorted and key >= self._last_key, key
            self._file.write(json.dumps([key, index, row], default=_plain) + "\n")

    def on_predict_end(self, trainer: TrainerView) -> None:
        assert self._file is not None
        self._file.close()
        if trainer.interrupted:
            trainer.log_line(f"{self.path.name} is not written: the prediction was interrupted")
            return
        if not self._sorted:
            _sort(self._part)
        trainer.ranks.barrier()
        trainer.ranks.on_rank_zero(
            lambda: self._merge([self._part_of(n) for n in range(trainer.world_size)])
        )

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        if self._file is not None:
            self._file.close()
            self._part.unlink(missing_ok=True)
            self._file = None

    def _merge(self, parts: list[Path]) -> None:
        staging = self.path.with_name(f".{self.path.name}.merged")
        try:
            with staging.open("w", encoding="utf-8", newline="") as file:
                write = _write_csv if self.path.suffix == ".csv" else _write_lines
                write(file, _merged(parts))
                file.flush()
                os.fsync(file.fileno())
            os.replace(staging, self.path)
        finally:
            staging.unlink(missing_ok=True)


# -- rows ------------------------------------------------------------------------------------------


def _rows(output: Any) -> list[dict[str, Any]]:
    """A row for each sample of an output that is a tensor, or a dict of tensors and lists."""
    columns = dict(output) if isinstance(output, Mapping) else {"prediction": output}
    named = {name: c.tolist() if isinstance(c, Tensor) else c for name, c in columns.items()}
    lists = all(isinstance(values, list) for values in named.values())
    if not lists or isinstance(output, list):
        raise _not_rows(output)
    sizes = {name: len(values) for name, values in named.items()}
    if len(set(sizes.values())) != 1:
        raise _not_rows(output, f"entries by column: {sizes}")
    return [dict(zip(named, values, strict=True)) for values in zip(*named.values(), strict=True)]


def _check_rows(rows: Any, samples: int) -> None:
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise _not_rows(rows)
    if samples and len(rows) != samples:
        raise _not_rows(rows, f"{len(rows)} rows for a batch of {samples} samples")
    if any("index" in row for row in rows):
        raise PacelineError(
            "PredictionWriter: a field is named 'index', as the column with a sample's index is",
            code="reserved-name",
            fix="give it another name",
        )


def _not_rows(output: Any, got: str = "") -> PacelineError:
    return PacelineError(
        "PredictionWriter: the output is not a row for each sample of the batch",
        code="predictions-not-writable",
        got=got or f"{type(output).__name__}: {shown(output)}",
        allowed="a tensor with a row for each sample, or a dict of those and of lists",
        fix="PredictionWriter(path, fields=lambda output, batch: [{...} for each sample])",
    )


def _number(index: Any) -> int | None:
    try:
        return operator.index(index)
    except TypeError:  # a dataset whose keys are no numbers: its rows are in the loader's order
        return None


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # tensors, and values of numpy
        return value.tolist()
    raise PacelineError(
        "PredictionWriter: a field is no plain data",
        code="predictions-not-writable",
        got=f"{type(value).__name__}: {shown(value)}",
        allowed="numbers, strings, None, tensors, and lists and dicts of them",
    )


# -- files -----------------------------------------------------------------------------------------


def _sort(part: Path) -> None:
    """Order the rows of a part by their keys; memory holds the keys alone."""
    staging = part.with_name(part.name + ".sorted")
    places, at = [], 0
    with part.open("rb") as file, staging.open("wb") as target:
        for line in file:
            places.append((json.loads(line)[0], at))
            at += len(line)
        for _, at in sorted(places):
            file.seek(at)
            target.write(file.readline())
    os.replace(staging, part)


def _merged(parts: list[Path]) -> Iterator[dict[str, Any]]:
    """The rows of all parts, in the order of their keys."""
    found = heapq.merge(*map(_read, parts), key=lambda line: line[0])
    for number, (_, index, row) in enumerate(found):
        yield {"index": number if index is None else index, **row}


def _read(part: Path) -> Iterator[list[Any]]:
    with part.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _write_lines(file: IO[str], rows: Iterator[dict[str, Any]]) -> None:
    for row in rows:
        file.write(json.dumps(row) + "\n")


def _write_csv(file: IO[str], rows: Iterator[dict[str, Any]]) -> None:
    columns: list[str] = []
    writer = csv.writer(file, lineterminator="\n")
    for row in rows:
        if not columns:
            columns = list(row)
            writer.writerow(columns)
        if set(row) != set(columns):
            raise PacelineError(
                "PredictionWriter: a CSV file has the same columns in every row",
                code="predictions-not-writable",
                got=f"columns {list(row)} of sample {row['index']}",
                allowed=f"columns {columns}, as in the first row",
                fix="write a .jsonl file, or give every sample the same fields",
            )
        cells = (row[name] for name in columns)
        writer.writerow([json.dumps(c) if isinstance(c, (list, dict)) else c for c in cells])
