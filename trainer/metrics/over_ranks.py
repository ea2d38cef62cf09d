"""What all ranks have logged, together: reduced over the ranks, never gathered."""

from __future__ import annotations

import math

import torch

from ...errors import PacelineError
from ...strategies.ranks.collectives import Collectives
from .accumulator import Sums


class SumsOverRanks:
    """Merges the sums of all data ranks under the names that any of them has logged.

    Args:
        ranks: Carry the values.
    """

    def __init__(self, ranks: Collectives) -> None:
        self._ranks = ranks
        self._agreed: list[tuple[str, str]] = []  # (name, reduction), in one order on all ranks

    def merged(self, mine: dict[str, Sums]) -> dict[str, Sums]:
        """The sums of all ranks, the same on each. To be called on all ranks.

        Two reductions at once, of sums and of extremes; where a rank has a new name, the names are
        gathered first.

        Args:
            mine: By name, the sums of this rank.

        Raises:
            PacelineError: on all ranks, for a name that two of them log with different reductions.
        """
        counted = mine if self._ranks.tensor_rank == 0 else {}
        while True:
            known = {name for name, _ in self._agreed}
            new = [name for name in mine if name not in known]
            rows = [counted.get(name) or Sums(reduce) for name, reduce in self._agreed]
            words = [number for sums in rows for number in (_added(sums), sums.weight, sums.count)]
            reduced = self._ranks.all_reduce_async(_as_tensor(words))
            extremes = self._ranks.all_reduce_async(_as_tensor([bool(new), *map(_highest, rows)]), "max")
            words, (any_new, *highest) = reduced().tolist(), extremes().tolist()
            if not any_new:
                return {
                    name: _merged(reduce, words[3 * n : 3 * n + 3], highest[n])
                    for n, (name, reduce) in enumerate(self._agreed)
                }
            named = self._ranks.all_gather([(name, mine[name].reduce) for name in new])
            self._agreed += dict.fromkeys(pair for pairs in named for pair in pairs)
            _refuse_two_reductions(self._agreed)


def _refuse_two_reductions(agreed: list[tuple[str, str]]) -> None:
    reductions: dict[str, str] = {}
    for name, reduce in agreed:
        if reductions.setdefault(name, reduce) != reduce:
            raise PacelineError(
                f"log({name!r}): the same name is logged with two reductions",
                code="log-reduction",
                got=f"{reduce!r} on one rank, {reductions[name]!r} on another",
                fix="give one of them another name",
            )


def _as_tensor(numbers: list[float]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device="cpu")


def _added(sums: Sums) -> float:
    """What is added up: the total, or of an extreme whether it is NaN, which a maximum would lose."""
    if sums.reduce in ("mean", "sum"):
        return sums.total
    return math.nan if sums.total != sums.total else 0.0


def _highest(sums: Sums) -> float:
    """What the maximum is taken of: a minimum is that of the negative."""
    if sums.reduce in ("mean", "sum") or sums.total != sums.total:
        return -math.inf
    return sums.total if sums.reduce == "max" else -sums.total


def _merged(reduce: str, words: list[float], highest: float) -> Sums:
    added, weight, count = words
    if reduce in ("mean", "sum") or added != added:
        return Sums(reduce, added, weight, int(count))
    return Sums(reduce, highest if reduce == "max" else -highest, weight, int(count))
