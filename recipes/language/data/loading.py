"""The data of a recipe of language models: read, split, encoded, and counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from torch.utils.data import ConcatDataset

from paceline import Mixture, PacelineError
from paceline.recipes.data.records import Mistakes, parse_one
from paceline.recipes.language.data.preview import Counts
from paceline.recipes.language.data.rows import Streamed
from paceline.recipes.language.data.samples import Reading
from paceline.recipes.language.data.sources import Loaded, open_source
from paceline.recipes.language.data.templates import Encoded, Encoding

S = TypeVar("S")
Item = TypeVar("Item")


@dataclass(frozen=True)
class Kind(Generic[S, Item]):
    """What a recipe trains on.

    Args:
        parse: Makes a sample of a record.
        allowed: The forms of records, for messages.
        encode: Makes what is trained on of a sample: several, or nothing.
        parts: The tokens of one of these, to be shown and counted.
        rows: Makes a dataset of them.
        built_in: Samples to train and to validate on where no data is given.
        of_tokens: Makes what is trained on of tokens, for its shapes.
    """

    parse: Callable[[Reading, dict[str, Any]], S]
    allowed: str
    encode: Callable[[Encoding, S], list[Item]]
    parts: Callable[[Item], Sequence[Encoded]]
    rows: Callable[[Sequence[Item]], Any]
    built_in: Callable[[], tuple[Sequence[S], Sequence[S]]]
    of_tokens: Callable[[Encoded], Item]


class Part(NamedTuple):
    """The data to train on, or to validate on.

    Attributes:
        rows: A dataset.
        counts: Of its samples.
        first: Some of them, to be shown.
    """

    rows: Any
    counts: Counts
    first: list[Encoded]


def load_parts(
    config: Any, encoding: Encoding, kind: Kind[Any, Any], streaming: bool = False
) -> tuple[Part, Part | None]:
    """What a recipe trains and validates on.

    Args:
        config: With ``data``, ``validation``, ``max_samples`` and ``system``.
        encoding: How samples become tokens.
        kind: What the recipe trains on.
        streaming: Whether records are read when they are asked for, of kinds whose items are tokens.

    Raises:
        PacelineError: for records of another form, one report of all; and for what cannot be read.
    """
    if config.data is None:
        return tuple(_built_in(samples, encoding, kind) for samples in kind.built_in())  # type: ignore[return-value]
    how = {"streaming": streaming, "system": config.system}
    opened = [open_source(source, config.max_samples, **how) for source in config.data]
    held_out: list[Loaded] = []
    if isinstance(config.validation, list):
        held_out = [open_source(source, None, **how) for source in config.validation]
    elif config.validation:
        halves = [source.split_off(config.validation) for source in opened]
        opened, held_out = ([half[n] for half in halves] for n in (0, 1))
    mistakes = Mistakes(kind.allowed)
    reader = _stream if streaming else _read
    read = [[reader(source, encoding, kind, mistakes) for source in part] for part in (opened, held_out)]
    mistakes.report()
    train, val = ([finish() for finish in part] for part in read)
    weights = [source.source.weight for source in opened]
    return _joined(train, kind, weights), _joined(val, kind, []) if val else None


class _Found(NamedTuple):
    """What a source gave."""

    items: Any
    counts: Counts
    first: list[Encoded]


def _built_in(samples: Sequence[Any], encoding: Encoding, kind: Kind[Any, Any]) -> Part:
    found = _encoded(((None, sample) for sample in samples), encoding, kind)
    return Part(kind.rows(found.items), found.counts, found.first)


def _read(
    source: Loaded, encoding: Encoding, kind: Kind[Any, Any], mistakes: Mistakes
) -> Callable[[], _Found]:
    """Parse the records, and encode them later, where none of any source is of another form."""
    samples = []
    for file in source.files:
        for index in range(len(file)):
            one = parse_one(file, index, partial(kind.parse, source.reading), mistakes)
            if one is not None:
                samples.append((file.place(index), one))
    return lambda: _encoded(samples, encoding, kind)


def _encoded(samples: Any, encoding: Encoding, kind: Kind[Any, Any]) -> _Found:
    items: list[Any] = []
    counts, first = Counts(), list[Encoded]()
    for place, sample in samples:
        found = _encode(encoding, kind, sample, place)
        items += found
        _count(counts, first, kind, found)
    return _Found(items, counts, first)


def _encode(encoding: Encoding, kind: Kind[Any, Any], sample: Any, place: str | None) -> list[Any]:
    try:
        return kind.encode(encoding, sample)
    except PacelineError as error:
        if place is None:
            raise
        raise PacelineError(f"{place}: {error}", code=error.code) from None


def _count(counts: Counts, first: list[Encoded], kind: Kind[Any, Any], found: list[Any]) -> None:
    rows = [one for item in found for one in kind.parts(item)]
    counts.add(rows)
    if len(first) < _SHOWN:
        first += rows


_SHOWN = 20
"""How many samples are kept to be shown."""


def _stream(
    source: Loaded, encoding: Encoding, kind: Kind[Any, Any], mistakes: Mistakes
) -> Callable[[], _Found]:
    """Read all records once, to know how long they are."""
    counts, first = Counts(), list[Encoded]()
    streamed = Streamed(partial(_again, source, encoding, kind, Mistakes(kind.allowed)))
    for index in range(len(source)):
        found = _again(source, encoding, kind, mistakes, index)
        streamed.take(index, found)
        _count(counts, first, kind, found)
    return lambda: _Found(streamed, counts, first)


def _again(
    source: Loaded, encoding: Encoding, kind: Kind[Any, Any], notes: Mistakes, index: int
) -> list[Any]:
    """What a record gives, read from its file."""
    file, number = source.place(index)
    one = parse_one(file, number, partial(kind.parse, source.reading), notes)
    return [] if one is None else _encode(encoding, kind, one, file.place(number))


def _joined(found: list[_Found], kind: Kind[Any, Any], weights: list[float | None]) -> Part:
    """Several sources as one: each sample once, or by weights."""
    rows = [kind.rows(one.items) for one in found]
    counts = sum((one.counts for one in found), Counts())
    first = [one for its in found for one in its.first]
    if len(rows) == 1:
        return Part(rows[0], counts, first)
    given = [weight for weight in weights if weight is not None]
    if not given:
        return Part(Joined(rows), counts, first)
    if len(given) < len(rows):
        raise PacelineError(
            "data: some sources have a weight, and others have none", code="recipe-settings"
        )
    return Part(Mixture(list(zip(rows, given, strict=True))), counts, first)


class Joined(ConcatDataset[Any]):
    """Datasets one after another, with the tokens of each row in ``sizes``."""

    def __init__(self, rows: Sequence[Any]) -> None:
        super().__init__(rows)
        self.sizes = [size for one in rows for size in one.sizes]
