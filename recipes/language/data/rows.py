"""Rows of samples: packed or one in each, kept in memory or encoded again when they are asked for."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from paceline import PacelineError
from paceline.recipes.language.data.templates import Encoded
from paceline.recipes.networks.document_attention import starts_of
from paceline.recipes.networks.head_loss import IGNORED


def pack(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Which items share a row of ``length``: the longest first, each where it leaves least room.

    Example:
        >>> pack([3, 5, 2, 4], 7)
        [[1, 2], [3, 0]]
    """
    rows: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # what is left in a row, and its number; sorted
    for item in sorted(range(len(sizes)), key=lambda item: (-sizes[item], item)):
        place = bisect_left(rooms, (sizes[item], 0))
        if place == len(rooms):
            rows.append([])
            room, row = length, len(rows) - 1
        else:
            room, row = rooms.pop(place)
        rows[row].append(item)
        insort(rooms, (room - sizes[item], row))
    return rows


class Streamed(Sequence[Encoded]):
    """Samples that are read and encoded when they are asked for; how long they are is all that is kept.

    Args:
        encode: What a record gives, by its number: rows that learn something.
    """

    def __init__(self, encode: Callable[[int], list[Encoded]]) -> None:
        self._encode = encode
        self.places, self.pieces, self.sizes = array("q"), array("i"), array("i")
        self._last: tuple[int, list[Encoded]] = (-1, [])

    def take(self, place: int, rows: Sequence[Encoded]) -> None:
        """Keep how long the rows of a record are."""
        self.places.extend([place] * len(rows))
        self.pieces.extend(range(len(rows)))
        self.sizes.extend(len(one.tokens) for one in rows)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: Any) -> Any:
        place = self.places[index]
        if self._last[0] != place:
            self._last = place, self._encode(place)
        return self._last[1][self.pieces[index]]


class Rows(Dataset[list[Encoded]]):
    """Samples, one in each row or packed.

    Args:
        samples: Encoded, none longer than ``length``; all learn something.
        length: Tokens in a packed row; 0 for one sample in each.

    Raises:
        PacelineError: without samples.
    """

    def __init__(self, samples: Sequence[Encoded], length: int = 0) -> None:
        self.samples = samples
        if not len(samples):
            raise PacelineError(
                "no sample has anything to learn within its length",
                code="samples-too-long",
                fix="a larger length",
            )
        known = samples.sizes if isinstance(samples, Streamed) else [len(one.tokens) for one in samples]
        self.rows = pack(known, length) if length else [[item] for item in range(len(known))]
        self.sizes = [sum(known[item] for item in row) for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> list[Encoded]:
        return [self.samples[item] for item in self.rows[index]]


class GroupedByLength(Sampler[int]):
    """Rows in an order that is drawn, in which neighbours are about as long: batches have less to fill up.

    Of each ``50 * batch_size`` rows of a random order the longest are first; the batch with the longest row
    of all is the first of the epoch, so that memory that does not suffice is met at once.

    Args:
        sizes: Of each row.
        batch_size: Rows of an optimizer step, over all devices.

    Example:
        >>> order = [*GroupedByLength([1, 9, 1, 9], 2)]
        >>> [sorted(order[:2]), sorted(order[2:])]
        [[1, 3], [0, 2]]
    """

    def __init__(self, sizes: Sequence[int], batch_size: int) -> None:
        self.sizes, self.batch_size = sizes, batch_size

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[int]:
        drawn = iter(torch.randperm(len(self.sizes)).tolist())
        batches: list[list[int]] = []
        while part := list(islice(drawn, 50 * self.batch_size)):
            part.sort(key=lambda item: -self.sizes[item])
            batches += [part[n : n + self.batch_size] for n in range(0, len(part), self.batch_size)]
        longest = max(range(len(batches)), key=lambda n: self.sizes[batches[n][0]])
        batches[0], batches[longest] = batches[longest], batches[0]
        return (item for batch in batches for item in batch)


def collate(rows: Sequence[list[Encoded]], length: int = 0) -> dict[str, Tensor]:
    """Rows as int64 tensors (rows, length): ``input_ids``, ``targets``, ``position_ids``; and ``starts``.

    Positions restart at 0 with each sample, and with what fills a row up; ``starts`` says where, as
    ``starts_of`` gives it. Models of transformers keep such sequences apart by their positions too, where
    they get no ``attention_mask``, and ``use_cache=False``. Where a sample counts other than 1,
    ``weights`` (rows, length), float32, has what each token does.

    Args:
        rows: What ``Rows`` gives.
        length: Of each row; 0: of the longest.
    """
    length = max(length, *(sum(len(one.tokens) for one in row) for row in rows))
    tokens, positions = torch.zeros(2, len(rows), length, dtype=torch.long)
    targets = torch.full((len(rows), length), IGNORED)
    weights = torch.ones(len(rows), length)
    for number, row in enumerate(rows):
        begin = 0
        for one in row:
            its = slice(begin, begin := begin + len(one.tokens))
            tokens[number, its] = torch.frombuffer(one.tokens, dtype=torch.int32)
            targets[number, its] = torch.frombuffer(one.targets, dtype=torch.int32)
            positions[number, its] = torch.arange(len(one.tokens))
            weights[number, its] = one.weight
        positions[number, begin:] = torch.arange(length - begin)
    starts = starts_of((positions == 0).cumsum(1))
    found = {"input_ids": tokens, "targets": targets, "position_ids": positions, "starts": starts}
    if any(one.weight != 1 for row in rows for one in row):
        found["weights"] = weights
    return found
