"""Which of several sources each sample comes from, by their weights: arithmetic of its number alone."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

import numpy as np

from ....errors import PacelineError

LONGEST = 10_000  # samples in a period


class Shares:
    """A fixed periodic order of sources, in proportion to their weights.

    Among the first n samples, a source with the share p has p n, to within one sample (R. Tijdeman, "The
    chairman assignment problem", Discrete Mathematics 32, 1980). The period is the smallest one in which
    each source has a whole number of samples, at most 10,000: shares that need more are rounded to 1e-4.

    Args:
        weights: Above 0, in any unit.

    Raises:
        PacelineError: for a share below 1e-4.

    Attributes:
        period: After so many samples the order repeats.
        counts: The samples of each source in a period.

    Example:
        >>> shares = Shares([0.7, 0.3])
        >>> [shares.at(k)[0] for k in range(10)]
        [0, 1, 0, 0, 0, 1, 0, 0, 1, 0]
        >>> shares.at(12)  # of source 0, which gave 8 samples before
        (0, 8)
    """

    def __init__(self, weights: Sequence[float]) -> None:
        exact = [Fraction(str(weight)) for weight in weights]
        parts = _simple([weight / sum(exact) for weight in exact])
        self.period = min(lcm(*(part.denominator for part in parts)), LONGEST)
        if any(part * LONGEST < 1 for part in parts):
            raise PacelineError(
                "a weight is too small for a Mixture",
                code="mixture-dataset",
                got=f"a share of {float(min(parts)):.2g}",
                allowed=f"at least {1 / LONGEST:g} of all samples",
            )
        self.counts = _rounded(parts, self.period)
        self._source, self._before = _in_turns(self.counts)

    def at(self, number: int) -> tuple[int, int]:
        """The source of a sample, and how many samples that source gave before.

        Args:
            number: Of the sample, from 0.
        """
        periods, place = divmod(number, self.period)
        source = int(self._source[place])
        return source, periods * self.counts[source] + int(self._before[place])


def _simple(parts: list[Fraction]) -> list[Fraction]:
    """The ratios of small numbers that floats such as 1/3 stand for, where all of them do."""
    simple = [part.limit_denominator(LONGEST) for part in parts]
    close = all(abs(a - b) < 1e-12 for a, b in zip(parts, simple, strict=True))
    return simple if close and sum(simple) == 1 else parts


def _rounded(parts: list[Fraction], whole: int) -> list[int]:
    """The parts of a whole number: by largest remainders."""
    exact = [part * whole for part in parts]
    counts = [int(count) for count in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: counts[i] - exact[i])
    for number in by_remainder[: whole - sum(counts)]:
        counts[number] += 1
    return counts


def _in_turns(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Tijdeman's order: each time the source that must come first of those that may come now.

    Returns:
        The source at each place, and how often it was at a place before.
    """
    whole, slack = sum(counts), max(2 * len(counts) - 2, 1)
    each, given = np.array(counts), np.zeros(len(counts), dtype=np.int64)
    source, before = np.zeros(whole, dtype=np.int32), np.zeros(whole, dtype=np.int32)
    for place in range(whole):
        may = slack * (each * (place + 1) - given * whole) >= whole
        must = np.where(may, (slack * (given + 1) - 1) / each, np.inf)
        chosen = int(must.argmin())
        source[place], before[place] = chosen, given[chosen]
        given[chosen] += 1
    return source, before
