"""Records of files: JSON, JSON lines, CSV, texts, Parquet, and datasets of Hugging Face on disk."""

from __future__ import annotations

import csv
import gzip
import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar, overload

from paceline import PacelineError
from paceline.errors import nearest
from paceline.recipes.data.hugging_face import require_packages

T = TypeVar("T")
ENDINGS = (".json", ".jsonl", ".csv", ".tsv", ".txt", ".md", ".parquet", ".arrow")
"""Of the files that are read of a folder; each may be followed by ``.gz`` but the last two."""
_OF_ALL = {"data", "records", "rows", "examples", "samples", "train"}
_MOST_REASONS, _MOST_FILES, _MOST_PLACES = 8, 2, 5


@dataclass
class Mistakes:
    """What is wrong with records, for one report of all.

    Attributes:
        allowed: The forms that there are.
        places: Where each reason was met: records, and the index there.
    """

    allowed: str
    places: dict[str, list[tuple[Records, int]]] = field(default_factory=dict)

    def add(self, records: Records, index: int, reason: str) -> None:
        """Take a note of one."""
        self.places.setdefault(reason, []).append((records, index))

    def report(self) -> None:
        """Raise, if anything was noted.

        Raises:
            PacelineError: with the reasons, and the first places of each.
        """
        if not self.places:
            return
        count = sum(map(len, self.places.values()))
        lines = [f"{_listed(places)}: {why}" for why, places in [*self.places.items()][:_MOST_REASONS]]
        if len(self.places) > _MOST_REASONS:
            lines.append(f"and {len(self.places) - _MOST_REASONS} other reasons")
        noun = "record" if count == 1 else "records"
        raise PacelineError(
            f"{count} {noun} cannot be used",
            code="records-unusable",
            got="\n       ".join(lines),
            allowed=self.allowed,
        )


def _listed(places: list[tuple[Records, int]]) -> str:
    """``a.jsonl lines 3, 7 and 2 more, b.json record 1``."""
    numbers: dict[tuple[Path, str], list[int]] = {}
    for records, index in places:
        numbers.setdefault((records.file, records.noun), []).append(records.number(index))
    files = [*numbers.items()]
    texts = []
    for (file, noun), its in files[:_MOST_FILES]:
        more = f" and {len(its) - _MOST_PLACES} more" if len(its) > _MOST_PLACES else ""
        shown = ", ".join(map(str, its[:_MOST_PLACES]))
        texts.append(f"{file} {noun}{'s' * (len(its) > 1)} {shown}{more}")
    if len(files) > _MOST_FILES:
        texts.append(f"and {len(files) - _MOST_FILES} other files")
    return ", ".join(texts)


@dataclass(frozen=True)
class NoJSON:
    """In place of a record: why its line could not be read."""

    reason: str


@dataclass(frozen=True)
class Records(Sequence[Any]):
    """The records of a file, and where each stands.

    Args:
        file: It.
        items: The records, parsed; or what reads them one at a time.
        noun: What a place is called: ``line`` or ``record``.
        numbers: Of the lines; None: 1, 2, ...
    """

    file: Path
    items: Sequence[Any]
    noun: str = "record"
    numbers: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Records: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, int):
            return self.items[index]
        places = range(len(self))[index]
        numbers = [self.number(n) for n in places]
        return Records(self.file, _Some(self.items, places), self.noun, numbers)

    def place(self, index: int) -> str:
        """Where a record stands.

        Example:
            >>> Records(Path("chats.jsonl"), [{}], "line").place(0)
            'chats.jsonl line 1'
        """
        return f"{self.file} {self.noun} {self.number(index)}"

    def number(self, index: int) -> int:
        """The number of a record in its file, from 1."""
        return index + 1 if self.numbers is None else self.numbers[index]


@dataclass(frozen=True)
class _Some(Sequence[Any]):
    """Some items of a sequence, read when they are asked for."""

    items: Sequence[Any]
    places: range

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: Any) -> Any:
        return self.items[self.places[index]]


class Lines(Sequence[Any]):
    """The lines of a file of JSON, each parsed when it is asked for: where they begin is all that is kept.

    Args:
        file: It; not compressed.

    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.begins, self.numbers = array("q"), array("q")
        place = 0
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    self.begins.append(place)
                    self.numbers.append(number)
                place += len(line)

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, index: Any) -> Any:
        with self.file.open("rb") as lines:  # opened each time: workers and copies share no position
            lines.seek(self.begins[index])
            text = lines.readline().decode("utf-8-sig" if index == 0 else "utf-8")
        return _parsed(text)


def files_of(path: Path) -> list[Path]:
    """The files that a path names: itself, or what a folder has, by name.

    Raises:
        PacelineError: for a path that does not exist, and a folder without such files.
    """
    path = path.expanduser()
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.is_file() and _kind(file) in ENDINGS)
    if not found:
        raise PacelineError(
            f"the folder {path} has no files of records",
            code="file-not-found",
            allowed=f"files that end with {', '.join(ENDINGS)}",
        )
    return found


def is_dataset_folder(path: Path) -> bool:
    """Whether ``save_to_disk`` of the package ``datasets`` wrote a folder."""
    return (path / "dataset_info.json").is_file() and (path / "state.json").is_file()


def read_file(file: Path, streaming: bool = False) -> Records:
    """The records of a file.

    JSON: a list, or an object for each line. CSV and TSV: a mapping for each line, by the names of the
    first. Text and Markdown: one record ``{"text": ...}`` of the whole file. Parquet and Arrow: by the
    package ``datasets``.

    Args:
        file: The file, which may be compressed (``.gz``).
        streaming: Read lines of JSON when they are asked for, in place of all at once.

    Raises:
        PacelineError: for a file that cannot be read, or is none of these.
    """
    kind = _kind(file)
    try:
        if kind in (".parquet", ".arrow"):
            return Records(file, _table(file, kind))
        if kind in (".csv", ".tsv"):
            rows = csv.DictReader(StringIO(_text(file)), dialect="excel" if kind == ".csv" else "excel-tab")
            return Records(file, list(rows))
        if kind in (".txt", ".md"):
            return Records(file, [{"text": _text(file)}])
        if streaming:
            return _streamed(file)
        return _json(file)
    except FileNotFoundError:
        here = [one.name for one in file.parent.iterdir()] if file.parent.is_dir() else []
        raise PacelineError(
            f"there is no file {file}", code="file-not-found", meant=nearest(file.name, here)
        ) from None
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise PacelineError(
            f"{file} cannot be read: {getattr(error, 'strerror', None) or error}", code="file-unreadable"
        ) from None


def _streamed(file: Path) -> Records:
    with file.open("rb") as opened:
        first = opened.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if first != b"{" or _kind(file) != file.suffix:
        raise PacelineError(
            f"{file} cannot be read while training: it is {'compressed' if first != b'[' else 'one list'}",
            code="file-unreadable",
            fix="a file with one JSON object in each line, a folder that save_to_disk wrote; or "
            "streaming=false",
        )
    lines = Lines(file)
    return Records(file, lines, "line", lines.numbers)


def _kind(file: Path) -> str:
    return file.with_suffix("").suffix if file.suffix == ".gz" else file.suffix


def _text(file: Path) -> str:
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8-sig", newline="") as text:  # type: ignore[operator]
        found: str = text.read()
    return found


def _json(file: Path) -> Records:
    text = _text(file)
    if text.lstrip()[:1] == "[":
        try:
            return Records(file, json.loads(text))
        except json.JSONDecodeError as error:
            raise PacelineError(f"{file} is no JSON: {error}", code="file-unreadable") from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    items = [_parsed(line) for _, line in lines]
    if items and all(isinstance(one, NoJSON) for one in items):
        raise PacelineError(
            f"{file} is no JSON: neither a list of records, nor one in each line", code="file-unreadable"
        )
    if len(items) == 1 and isinstance(items[0], dict) and (under := _OF_ALL & {*items[0]}):
        name = min(under)
        raise PacelineError(
            f"{file} has its records under {name!r}; a file is a list of records, or one in each line",
            code="file-unreadable",
            fix=f"jq -c '.{name}[]' {file} > {file.stem}.jsonl",
        )
    return Records(file, items, "line", [number for number, _ in lines])


def _parsed(line: str) -> Any:
    try:
        return json.loads(line.rstrip())
    except json.JSONDecodeError as error:
        return NoJSON(f"it is no JSON: {error.msg}, at character {error.pos + 1}")


def _table(file: Path, kind: str) -> Any:
    require_packages("a file of columns", "datasets")
    from datasets import Dataset

    return Dataset.from_parquet(str(file)) if kind == ".parquet" else Dataset.from_file(str(file))


def read_records(file: Path, parse: Callable[[dict[str, Any]], T], allowed: str) -> list[T]:
    """What ``parse`` makes of each record of a file.

    Args:
        file: To read.
        parse: Called with a mapping; it raises KeyError, TypeError or ValueError for one of another form.
        allowed: The forms, for the error.

    Raises:
        PacelineError: for records of another form: one report of all.
    """
    mistakes = Mistakes(allowed)
    records = read_file(file.expanduser())
    found = [
        one for k in range(len(records)) if (one := parse_one(records, k, parse, mistakes)) is not None
    ]
    mistakes.report()
    return found


def parse_one(
    records: Records, index: int, parse: Callable[[dict[str, Any]], T], mistakes: Mistakes
) -> T | None:
    """What ``parse`` makes of a record; None, and a note, of one that it refuses."""
    record = records[index]
    try:
        if isinstance(record, NoJSON):
            raise ValueError(record.reason)
        if not isinstance(record, dict):
            raise TypeError(f"it is no mapping: {str(record)[:60]!r}")
        return parse(record)
    except KeyError as error:
        keys = ", ".join(record) or "no keys"
        mistakes.add(records, index, f"no {error.args[0]!r}, among {keys}")
    except (TypeError, ValueError) as error:
        mistakes.add(records, index, str(error))
    return None


def split_off(items: Sequence[T], part: float) -> tuple[Sequence[T], Sequence[T]]:
    """All but the last ``part`` of them, and these; at least one.

    Raises:
        PacelineError: for fewer than two.

    Example:
        >>> split_off([1, 2, 3, 4], 0.25)
        ([1, 2, 3], [4])
    """
    if len(items) < 2:
        raise PacelineError(
            f"{len(items)} records are too few to train and to validate on", code="too-few-samples"
        )
    count = max(1, round(part * len(items)))
    return items[:-count], items[-count:]
