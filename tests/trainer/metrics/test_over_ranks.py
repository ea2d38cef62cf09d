"""What all ranks have logged, together: two ranks in one process, whose words are reduced as they are."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from paceline import PacelineError
from paceline.trainer.metrics.accumulator import Sums
from paceline.trainer.metrics.over_ranks import SumsOverRanks


class OneOfTwo:
    """One of two ranks: the words of the other are known.

    Args:
        others: The words of the other rank, for each reduction in order.
        names: What it gathers of the other rank.
    """

    def __init__(
        self, others: list[list[float]], names: list[tuple[str, str]], tensor_rank: int = 0
    ) -> None:
        self.others, self.names, self.tensor_rank = others, names, tensor_rank
        self.sent: list[list[float]] = []

    def all_reduce_async(self, values: torch.Tensor, op: str = "sum") -> Any:
        other = torch.tensor(self.others[len(self.sent)], dtype=torch.float64)
        self.sent.append(values.tolist())
        assert values.dtype == torch.float64
        combined = values + other if op == "sum" else torch.maximum(values, other)
        return lambda: combined

    def all_gather(self, value: Any) -> list[Any]:
        return [value, self.names]


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("reduce", "mine", "others", "expected"),
    [
        ("mean", (6.0, 3.0, 2), ([4.0, 1.0, 1], [0, -INF]), ["mean", 10.0, 4.0, 3]),
        ("sum", (6.0, 0.0, 2), ([4.0, 0.0, 1], [0, -INF]), ["sum", 10.0, 0.0, 3]),
        ("max", (6.0, 0.0, 2), ([0.0, 0.0, 1], [0, 7.0]), ["max", 7.0, 0.0, 3]),
        ("min", (6.0, 0.0, 2), ([0.0, 0.0, 1], [0, -7.0]), ["min", 6.0, 0.0, 3]),
        ("min", (6.0, 0.0, 2), ([0.0, 0.0, 0], [0, -INF]), ["min", 6.0, 0.0, 2]),
    ],
)
def test_each_reduction(reduce: str, mine: tuple, others: tuple, expected: list) -> None:
    names = [("x", reduce)]
    ranks = OneOfTwo([[], [1], *others], names)
    merged = SumsOverRanks(ranks).merged({"x": Sums(reduce, *mine)})
    assert merged["x"].plain() == expected


@pytest.mark.parametrize("reduce", ["min", "max"])
def test_a_nan_of_one_rank_stays(reduce: str) -> None:
    ranks = OneOfTwo([[], [1], [NAN, 0.0, 1], [0, -INF]], [("x", reduce)])
    total = SumsOverRanks(ranks).merged({"x": Sums(reduce, 2.0, 0.0, 1)})["x"].total
    assert total != total
    mine = OneOfTwo([[], [1], [0.0, 0.0, 1], [0, 5.0]], [("x", reduce)])
    total = SumsOverRanks(mine).merged({"x": Sums(reduce, NAN, 0.0, 1)})["x"].total
    assert total != total
    assert mine.sent[-1] == [0.0, -INF]


def test_what_ranks_that_split_layers_log_is_counted_once() -> None:
    ranks = OneOfTwo([[], [1], [4.0, 1.0, 1], [0, -INF]], [("x", "mean")], tensor_rank=1)
    merged = SumsOverRanks(ranks).merged({"x": Sums("mean", 4.0, 1.0, 1)})
    assert merged["x"].plain() == ["mean", 4.0, 1.0, 1]


def test_names_are_gathered_once_and_then_never() -> None:
    ranks = OneOfTwo([[], [1], *[[0.0] * 6, [0, -INF, -INF]] * 2], [("y", "sum")])
    over = SumsOverRanks(ranks)
    assert list(over.merged({"x": Sums("mean", 1.0, 1.0, 1)})) == ["x", "y"]
    ranks.all_gather = None  # type: ignore[assignment]
    assert list(over.merged({"x": Sums("mean", 1.0, 1.0, 1)})) == ["x", "y"]


def test_a_name_with_another_reduction_on_another_rank_is_refused() -> None:
    ranks = OneOfTwo([[], [1]], [("x", "sum")])
    with pytest.raises(PacelineError, match=r"log\('x'\): the same name is logged with two reductions"):
        SumsOverRanks(ranks).merged({"x": Sums("mean", 1.0, 1.0, 1)})
