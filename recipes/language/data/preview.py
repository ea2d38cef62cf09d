"""What is trained on, to be looked at: samples with what is learned marked, and counts of tokens."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from statistics import median
from typing import Any

from paceline.recipes.language.data.templates import Encoded
from paceline.recipes.networks.head_loss import IGNORED

_GREEN, _PLAIN = "\x1b[32m", "\x1b[0m"


@dataclass
class Counts:
    """Samples and tokens of a part of the data.

    Attributes:
        samples: Read.
        dropped: Of these, not trained on: nothing to learn within the length, or too long.
        cut: How many were cut off.
        tokens: All that are read.
        learned: Of these, those that are learned.
        sizes: Tokens of each.
    """

    samples: int = 0
    dropped: int = 0
    cut: int = 0
    tokens: int = 0
    learned: int = 0
    sizes: list[int] = field(default_factory=list)

    def add(self, found: Iterable[Encoded]) -> None:
        """Count what a record gave: its rows."""
        rows = [*found]
        self.samples += 1
        self.dropped += not rows
        self.cut += any(one.cut for one in rows)
        for one in rows:
            self.tokens += len(one.tokens)
            self.learned += sum(target != IGNORED for target in one.targets)
            self.sizes.append(len(one.tokens))

    def __add__(self, other: Counts) -> Counts:
        """Of both."""
        return Counts(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def __str__(self) -> str:
        """One line.

        Example:
            >>> str(Counts(samples=3, cut=1, tokens=30, learned=12, sizes=[10, 20]))
            '3 samples, 30 tokens (12 learned), at most 20 in a row and 15 in the median; 1 cut off'
        """
        sizes = self.sizes or [0]
        text = (
            f"{self.samples:,} samples, {self.tokens:,} tokens ({self.learned:,} learned), at most "
            f"{max(sizes):,} in a row and {round(median(sizes)):,} in the median"
        )
        dropped = f"; {self.dropped:,} dropped: nothing to learn within the length" if self.dropped else ""
        return text + dropped + (f"; {self.cut:,} cut off" if self.cut else "")


def shown(tokenizer: Any, one: Encoded, colour: bool | None = None) -> str:
    """A sample as text, with what is learned in green, or between brackets.

    Args:
        tokenizer: Of transformers.
        one: The sample.
        colour: Whether it is for a terminal; None: whether standard output is one.
    """
    colour = sys.stdout.isatty() if colour is None else colour
    begin, end = (_GREEN, _PLAIN) if colour else ("\u27e6", "\u27e7")
    learned = [False, *(target != IGNORED for target in one.targets[:-1])]
    parts = groupby(zip(one.tokens, learned, strict=True), key=lambda pair: pair[1])
    texts = ((is_learned, tokenizer.decode([token for token, _ in pairs])) for is_learned, pairs in parts)
    return "".join(f"{begin}{text}{end}" if is_learned else text for is_learned, text in texts)


def preview(tokenizer: Any, samples: Sequence[Encoded], number: int, counts: Counts) -> str:
    """The first samples, and the counts.

    Args:
        tokenizer: Of transformers.
        samples: Encoded.
        number: How many are shown.
        counts: Of all.
    """
    colour = sys.stdout.isatty()
    how = "green" if colour else "between \u27e6 and \u27e7"
    lines = []
    for k in range(min(number, len(samples))):
        one = samples[k]
        learned = sum(target != IGNORED for target in one.targets)
        lines += [
            f"-- {k + 1}: {len(one.tokens)} tokens, {learned} learned ({how})",
            shown(tokenizer, one, colour),
        ]
    return "\n".join([*lines, f"-- {counts}"])
