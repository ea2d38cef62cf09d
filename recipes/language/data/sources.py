"""Where samples come from: files, folders of them, datasets of Hugging Face; several with weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt

from paceline import PacelineError
from paceline.recipes.data.hugging_face import require_packages
from paceline.recipes.data.records import Records, files_of, is_dataset_folder, read_file, split_off
from paceline.recipes.language.data.samples import Column, Form, Reading


class DataSource(BaseModel):
    """A file, a folder, or a dataset of Hugging Face, and how its records are read."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    path: str
    """A file, a folder of files, a folder that ``save_to_disk`` wrote, or a name on the hub."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Its part of the samples, over the sum of all weights; none: each sample once in an epoch."""
    samples: PositiveInt | None = None
    """At most so many of it, the first ones; none: ``max_samples``."""
    form: Form | None = None
    """Of its records; none: what their keys say."""
    columns: dict[Column, str] = {}
    """The names that its records have, by ours: ``{instruction: question, output: answer}``."""
    roles: dict[str, str] = {}
    """Our roles, by those of its messages: ``{bot: assistant}``."""
    split: str = "train"
    """Of a dataset of Hugging Face with splits."""
    name: str | None = None
    """Of a dataset on the hub that has several configurations."""


def _sources(value: Any) -> Any:
    """A path, a mapping, or a list of both, as a list of mappings."""
    if value is None:
        return None
    return [one if isinstance(one, (dict, DataSource)) else {"path": str(one)} for one in _list(value)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


_Written = str | DataSource | list[str | DataSource]
Sources = Annotated[list[DataSource], BeforeValidator(_sources, json_schema_input_type=_Written)]
"""A path, or a list of paths and of ``{path: ..., weight: 2, columns: ...}``."""


def _part_or_sources(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return _sources(value)


_Part = Annotated[float, Field(ge=0, lt=1)]
Validation = Annotated[
    _Part | list[DataSource], BeforeValidator(_part_or_sources, json_schema_input_type=_Part | _Written)
]
"""A part of each source, its end; or paths, as of ``Sources``."""


@dataclass(frozen=True)
class Loaded:
    """A source that has been opened.

    Attributes:
        source: What was asked for.
        files: Its records, by file.
        reading: How they are read.
    """

    source: DataSource
    files: list[Records]
    reading: Reading

    def __len__(self) -> int:
        return sum(map(len, self.files))

    def split_off(self, part: float) -> tuple[Loaded, Loaded]:
        """Without its end, and that: a part of each file."""
        if len(self) == 1 and self.files[0].noun == "record":
            return self._within(part)
        halves = [split_off(file, part) if len(file) > 1 else (file, file[:0]) for file in self.files]
        one, other = (
            Loaded(self.source, [half for half in side if len(half)], self.reading)
            for side in zip(*halves, strict=True)
        )
        if not len(other):
            return self._last_files_apart()
        return one, other

    def _last_files_apart(self) -> tuple[Loaded, Loaded]:
        """Of files with one record each, the last one apart."""
        if len(self.files) < 2:
            count = "1 record" if len(self) == 1 else f"{len(self)} records"
            raise PacelineError(
                f"{self.source.path} has {count}, too few to train and to validate on",
                code="too-few-samples",
                fix="validation=FILE, or validation=0",
            )
        return (
            Loaded(self.source, self.files[:-1], self.reading),
            Loaded(self.source, self.files[-1:], self.reading),
        )

    def _within(self, part: float) -> tuple[Loaded, Loaded]:
        """Of one text alone, its end, from a line on."""
        file = self.files[0]
        record = file[0]
        text = record.get("text") if isinstance(record, dict) else None
        if not isinstance(text, str) or len(text) < 100:
            return self._last_files_apart()
        cut = text.rfind("\n", 1, round(len(text) * (1 - part))) + 1 or round(len(text) * (1 - part))
        one, other = (
            Loaded(self.source, [Records(file.file, [record | {"text": half}])], self.reading)
            for half in (text[:cut], text[cut:])
        )
        return one, other

    def place(self, index: int) -> tuple[Records, int]:
        """The file of a record of all, and its number there, from 0."""
        for file in self.files:
            if index < len(file):
                return file, index
            index -= len(file)
        raise IndexError(index)


def open_source(source: DataSource, max_samples: int | None, streaming: bool, system: str | None) -> Loaded:
    """Open what a source names.

    Args:
        source: It.
        max_samples: At most so many records, where it does not say how many.
        streaming: Whether records are read when they are asked for.
        system: The system prompt of conversations that have none.

    Raises:
        PacelineError: for what does not exist, or cannot be read.
    """
    path = Path(source.path).expanduser()
    if path.is_dir() and ((path / "dataset_dict.json").is_file() or is_dataset_folder(path)):
        files = [_on_disk(path, source.split)]
    elif not path.exists() and source.path.count("/") <= 1 and not path.suffix:
        files = [_of_hub(source)]
    else:
        files = [read_file(file, streaming) for file in files_of(path)]
    most = source.samples or max_samples
    if most is not None:
        files = [*_first(files, most)]
    reading = Reading(source.form, source.columns, source.roles, system)
    return Loaded(source, files, reading)


def _first(files: Sequence[Records], most: int) -> Iterator[Records]:
    for file in files:
        if most > 0:
            yield file[:most]
        most -= len(file)


def _on_disk(path: Path, split: str) -> Records:
    require_packages(f"the dataset {path}", "datasets")
    from datasets import load_from_disk

    found: Any = load_from_disk(str(path))
    return Records(path, _split_of(found, split, str(path)))


def _of_hub(source: DataSource) -> Records:
    require_packages(f"{source.path}, which is no file here,", "datasets")
    from datasets import load_dataset

    try:
        found: Any = load_dataset(source.path, source.name, split=source.split)
    except Exception as error:  # of many packages
        raise PacelineError(
            f"{source.path} is no file or folder here, and cannot be read from the hub",
            code="dataset-not-available",
            got=str(error).strip().split("\n")[0],
        ) from None
    return Records(Path(source.path), found)


def _split_of(found: Any, split: str, path: str) -> Any:
    if not isinstance(found, dict):
        return found
    if split not in found:
        raise PacelineError(
            f"{path} has no split {split!r}",
            code="dataset-not-available",
            allowed=", ".join(found),
            fix="split: ...",
        )
    return found[split]
