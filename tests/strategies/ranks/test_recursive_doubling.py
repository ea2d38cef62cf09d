"""Collectives of small values on the host: on each number of ranks exact, in few rounds, alike on all."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from helpers.ranks import run_cases

from paceline.strategies.ranks.recursive_doubling import MOST_BYTES, rounds_of

JOB = Path(__file__).with_name("recursive_doubling_job.py")


def simulated(size: int) -> list[set[int]]:
    """Whose values each rank has in the end, where a rank waits for what it receives."""
    left = {rank: list(rounds_of(rank, size)) for rank in range(size)}
    held = {rank: {rank} for rank in range(size)}
    while any(left.values()):
        ready = [
            (rank, rounds[0])
            for rank, rounds in left.items()
            if rounds and left[rounds[0].peer] and left[rounds[0].peer][0].peer == rank
        ]
        assert ready, "no pair of ranks is ready for each other"
        before = {rank: set(found) for rank, found in held.items()}
        for rank, this in ready:
            other = left[this.peer][0]
            assert (this.sends, this.receives) == (other.receives, other.sends)
            if this.receives:
                theirs = before[this.peer]
                assert not this.combines or not theirs & before[rank], "a value is counted twice"
                held[rank] = theirs | before[rank] if this.combines else theirs
        for rank, _ in ready:
            left[rank].pop(0)
    return [held[rank] for rank in range(size)]


@pytest.mark.parametrize("size", [*range(1, 34), 63, 64, 65, 100])
def test_each_value_is_counted_once_on_each_rank(size: int) -> None:
    assert simulated(size) == [set(range(size))] * size


@pytest.mark.parametrize("size", [2, 3, 8, 1000, 1024, 10_000])
def test_the_rounds_grow_as_the_logarithm_of_the_ranks(size: int) -> None:
    most = max(len(rounds_of(rank, size)) for rank in range(size))
    assert most <= math.floor(math.log2(size)) + 2
    assert most == math.log2(size) or size & (size - 1)


@pytest.fixture(scope="module", params=[2, 3, 5])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("reduce")
    results = run_cases(JOB, folder, {"all": {}}, one_pair=True, ranks=request.param)
    return results["all"]


def test_sums_and_extremes_are_exact_for_each_dtype(found: list[dict]) -> None:
    ranks = len(found)
    for rank in found:
        assert rank["sum"] == {
            dtype: [sum(range(ranks)), -sum(range(ranks)), ranks]
            for dtype in ("int64", "float64", "float32")
        }
        assert rank["max"] == {dtype: [ranks - 1, 0, 1] for dtype in ("int64", "float64", "float32")}
        assert rank["min"] == {dtype: [0, 1 - ranks, 1] for dtype in ("int64", "float64", "float32")}


def test_the_bits_are_the_same_on_all_ranks(found: list[dict]) -> None:
    assert len({json.dumps(rank["tenths"]) for rank in found}) == 1
    assert float.fromhex(found[0]["tenths"]) == pytest.approx(sum((r + 1) / 10 for r in range(len(found))))


def test_what_was_given_is_left_as_it_was(found: list[dict]) -> None:
    assert [rank["given"] for rank in found] == [[rank, 1.5] for rank in range(len(found))]


def test_of_two_each_is_read_as_often_as_one_likes(found: list[dict]) -> None:
    ranks = len(found)
    assert all(rank["crossed"] == [ranks, 10 * ranks, ranks] for rank in found)


def test_a_reduction_is_the_same_whichever_is_read_first_and_by_whom(found: list[dict]) -> None:
    ranks = len(found)
    assert all(rank["in another order"] == [10 * ranks, ranks, 1000 * ranks] for rank in found)


def test_tensors_that_are_not_contiguous_are_reduced(found: list[dict]) -> None:
    times = sum(range(1, len(found) + 1))
    expected = [[0.0, 3.0 * times], [1.0 * times, 4.0 * times], [2.0 * times, 5.0 * times]]
    assert all(rank["transposed"] == expected for rank in found)


def test_zeros_have_the_same_sign_on_all_ranks(found: list[dict]) -> None:
    assert all(rank["zeros"] == found[0]["zeros"] for rank in found)


def test_other_operations_are_gloos(found: list[dict]) -> None:
    assert all(rank["product"] == 2 ** len(found) for rank in found)


def test_a_default_device_is_not_used(found: list[dict]) -> None:
    everyone = [[rank] for rank in range(len(found))]
    assert all(rank["elsewhere"] == [everyone, True] for rank in found)


def test_objects_of_all_sizes_are_gathered_in_the_order_of_ranks(found: list[dict]) -> None:
    expected = [[rank, "x" * 1000 * rank] for rank in range(len(found))]
    assert all(rank["objects"] == expected for rank in found)


def test_large_values_have_the_same_sum(found: list[dict]) -> None:
    assert all(rank["large"] == [len(found), MOST_BYTES // 8 + 1] for rank in found)


def test_a_comparison_sees_the_one_rank_that_differs(found: list[dict]) -> None:
    for rank in found:
        assert rank["same"] == [True, True, False, False]


def test_a_value_of_one_rank_of_a_tensor_group_is_seen(found: list[dict]) -> None:
    for rank in found:
        assert rank["groups alike"] is True
        assert rank["groups apart"] == [False] * len(found)


def test_many_ranks_are_connected_when_they_first_need_it(tmp_path: Path) -> None:
    """Five ranks, of which each exchanges values with two or three others and is their ring's neighbour."""
    all_connected = run_cases(JOB, tmp_path, {"few": {}}, one_pair=True, ranks=5)["few"]
    found = run_cases(JOB, tmp_path, {"many": {}}, one_pair=True, ranks=5, function="with_many_ranks")[
        "many"
    ]
    assert sum(r["sockets"] for r in found) < sum(r["sockets"] for r in all_connected)
    alike = [rank | {"sockets": 0, "output": ""} for rank in found]
    assert alike == [rank | {"sockets": 0, "output": ""} for rank in all_connected]


def test_a_run_whose_ranks_are_connected_at_first_use_is_the_same(tmp_path: Path) -> None:
    cases = {"at first use": {"connected_at_first_use": True}, "all": {"connected_at_first_use": False}}
    found = run_cases(JOB, tmp_path, cases, one_pair=False, ranks=3, function="train_and_resume")
    for here, there in zip(found["at first use"], found["all"], strict=True):
        assert here["steps"] == there["steps"] == 6
        assert here["weights"] == there["weights"]


def test_no_step_gathers_anything(tmp_path: Path) -> None:
    """What is gathered grows with the ranks: a step reduces, whatever it reads and each time it logs."""
    cases = {name or "map": {"stream": name} for name in ("", "same", "own")}
    results = run_cases(JOB, tmp_path, cases, one_pair=False, function="collectives_of_steps")
    for name, found in results.items():
        for rank in found:
            counted = {kind: count for kind, count in rank.items() if kind != "output"}
            assert set(counted) == {"all_reduce"}, name
            a_step = counted["all_reduce"] / 8
            assert 2 <= a_step <= {"map": 3, "same": 4, "own": 5}[name], name


def test_ranks_of_a_tensor_group_that_read_other_batches_is_an_error(tmp_path: Path) -> None:
    found = run_cases(JOB, tmp_path, {"batches": {}}, one_pair=True, function="unequal_batches")["batches"]
    assert all("ranks 0 and 1 split each layer between them" in rank["error"] for rank in found)
