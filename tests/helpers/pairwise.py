"""Which combinations of two things the default run takes; ``--soak`` takes all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import pytest

Pair = tuple[Hashable, Hashable]


def covering(pairs: Sequence[Pair], each: int = 2) -> list[Pair]:
    """Of (row, column) pairs those that cover both: each row with some columns, each column with a row.

    Args:
        each: How many columns a row has, as far as there are any; those that are rare so far come first.
    """
    taken: set[Pair] = set()
    count: Counter[Hashable] = Counter()
    for row in dict.fromkeys(row for row, _ in pairs):
        columns = sorted((c for r, c in pairs if r == row), key=lambda column: count[column])
        taken |= {(row, column) for column in columns[:each]}
        count.update(columns[:each])
    for row, column in reversed(pairs):
        if not count[column]:
            taken.add((row, column))
            count[column] += 1
    return [pair for pair in pairs if pair in taken]


def soaked(every: Sequence[Any], usual: Sequence[Any]) -> list[Any]:
    """All of them as parameters of a test; those beyond the usual ones run under ``--soak`` only."""
    found = []
    for one in every:
        values = one if isinstance(one, tuple) else (one,)
        found.append(pytest.param(*values, marks=() if one in usual else pytest.mark.soak))
    return found
