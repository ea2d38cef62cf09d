"""Contributions to logged values, and their results. Sums are Python floats: double precision."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor


class Sums:
    """What came in under one name, of which a value can be made."""

    __slots__ = ("count", "reduce", "total", "weight")

    def __init__(
        self, reduce: str, total: float | None = None, weight: float = 0.0, count: int = 0
    ) -> None:
        self.reduce, self.weight, self.count = reduce, weight, count
        self.total = _start(reduce) if total is None else total

    def take(self, other: Sums) -> None:
        """Add what another one holds."""
        if other.count:
            if self.reduce in ("mean", "sum"):
                self.total += other.total
            else:
                self.total = _pick(self.reduce, self.total, other.total)
            self.weight += other.weight
            self.count += other.count

    def clear(self) -> None:
        """Start again from zero."""
        self.total, self.weight, self.count = _start(self.reduce), 0.0, 0

    def result(self) -> float | None:
        """The value; None where nothing came in."""
        if not self.count:
            return None
        if self.reduce != "mean":
            return self.total
        return self.total / self.weight if self.weight else math.nan

    def plain(self) -> list[Any]:
        """As plain data, in the order of the constructor."""
        return [self.reduce, self.total, self.weight, self.count]


class Value:
    """One name's contributions: those of the log window, and those of the epoch before it."""

    __slots__ = ("epoch", "pending", "reduce", "shown", "window")

    def __init__(self, reduce: str) -> None:
        self.reduce, self.shown = reduce, False
        self.pending: list[tuple[Tensor, float | Tensor]] = []
        self.window, self.epoch = Sums(reduce), Sums(reduce)

    def add(self, value: float, weight: float) -> None:
        """Take one contribution that is on the host."""
        sums = self.window
        sums.count += 1
        if self.reduce == "mean":
            if weight:  # what counts nothing cannot make it NaN either
                sums.total += value * weight
                sums.weight += weight
        elif self.reduce == "sum":
            sums.total += value
        else:
            sums.total = _pick(self.reduce, sums.total, value)


def _start(reduce: str) -> float:
    return {"min": math.inf, "max": -math.inf}.get(reduce, 0.0)


def _pick(reduce: str, a: float, b: float) -> float:
    """The smaller or larger one; a NaN stays."""
    if a != a or b != b:
        return math.nan
    return min(a, b) if reduce == "min" else max(a, b)
