"""precision="fp16" on two ranks, under each strategy: one rank's overflow skips the update on all."""

import json
import math
from pathlib import Path

import pytest
from helpers.pairwise import soaked
from helpers.ranks import run_cases

pytestmark = pytest.mark.launch  # for its length
JOB = Path(__file__).with_name("fp16_job.py")
STRATEGIES = ("ddp", "fsdp", "hsdp", *(f"deepspeed_stage_{stage}" for stage in range(4)))
# Whether gradients are clipped, and whether a hook reads them: else nothing but the update unscales them.
CASES = {
    f"{strategy} rank {rank}{' clipped' * clip}{' read' * reads}{' row' * row}": (
        strategy,
        rank,
        clip,
        reads,
        row,
    )
    for strategy in STRATEGIES
    for rank, clip, reads, row in (
        (0, False, False, False),
        (1, True, True, False),
        (1, False, False, True),
    )
}

# Each strategy, and each way to see an overflow under DDP, under FSDP's shards and under ZeRO.
USUAL = [
    "ddp rank 0",
    "ddp rank 1 clipped read",
    "ddp rank 1 row",
    "fsdp rank 0",
    "fsdp rank 1 clipped read",
    "hsdp rank 1 row",
    "deepspeed_stage_0 rank 0",
    "deepspeed_stage_1 rank 1 row",
    "deepspeed_stage_2 rank 1 clipped read",
    "deepspeed_stage_3 rank 0",
]


@pytest.fixture(scope="module")
def planted(request, tmp_path_factory):
    cases = {
        name: dict(zip(("strategy", "rank", "clip", "reads", "row"), case, strict=True))
        for name, case in CASES.items()
        if name in USUAL or request.config.getoption("--soak")
    }
    return run_cases(JOB, tmp_path_factory.mktemp("planted"), cases, one_pair=True, function="planted")


@pytest.mark.fault(17)
@pytest.mark.parametrize("name", soaked(list(CASES), USUAL))
def test_an_overflow_on_one_rank_skips_the_update_on_all(planted, name):
    zero, one = planted[name]
    assert zero["error"] is one["error"] is None
    for found in (zero, one):
        steps = found["steps"]
        assert [step["skipped"] for step in steps] == [0, 0, 1, 1, 1, 1]
        assert [step["scale"] for step in steps] == [2.0**12] * 2 + [2.0**11] * 3 + [2.0**12]
        assert [step["rate"] for step in steps] == [0.1 * 0.5**n for n in (1, 2, 2, 3, 4, 5)]
    sums = [step["weights"] for step in zero["steps"]]
    assert sums[1] == sums[2]
    assert all(sums[i] != sums[i + 1] for i in (0, 2, 3, 4))
    if "deepspeed" not in name:  # which gives rank 0 alone the whole weights
        assert zero["steps"] == one["steps"]


@pytest.mark.parametrize("name", soaked(list(CASES), USUAL))
def test_all_strategies_end_with_the_same_weights(planted, name):
    """To float16's rounding: the same update is skipped, and no other."""
    reads = CASES[name][3]
    other = planted["ddp rank 1 clipped read" if reads else "ddp rank 0"][0]["steps"][-1]["weights"]
    found = planted[name][0]["steps"][-1]["weights"]
    for (weight, value), (expected_weight, expected) in zip(found, other, strict=True):
        assert weight == expected_weight
        assert value == pytest.approx(expected, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("name", soaked([name for name in CASES if "read" in name], USUAL))
def test_hooks_see_gradients_without_the_scale(planted, name):
    norms = planted[name][0]["norms"]
    assert not math.isfinite(norms[2])
    others = [norm for index, norm in enumerate(norms) if index != 2]
    expected = planted["ddp rank 1 clipped read"][0]["norms"]
    assert all(0.01 < norm < 2 for norm in others), norms
    assert norms[:2] == pytest.approx(expected[:2], rel=2e-3)


def test_skipped_updates_and_the_scale_are_logged(planted):
    found = planted["ddp rank 0"][0]
    rows = {row["step"]: row for row in found["rows"] if "fp16/loss_scale" in row}
    assert [rows[step]["fp16/loss_scale"] for step in (1, 2, 3, 6)] == [4096.0, 4096.0, 2048.0, 4096.0]
    assert [rows[step]["fp16/skipped_steps"] for step in (2, 3, 4)] == [0.0, 1.0, 1.0]
    assert "step 3, epoch 1: gradients overflowed in float16, the update is skipped;" in found["log"]
    assert "the loss scale is now 2048" in found["log"]


@pytest.fixture(scope="module")
def skipped(tmp_path_factory):
    cases = {strategy: {"strategy": strategy} for strategy in ("ddp", "deepspeed_stage_2")}
    return run_cases(JOB, tmp_path_factory.mktemp("skipped"), cases, one_pair=True, function="skipped")


@pytest.mark.parametrize("strategy", ["ddp", "deepspeed_stage_2"])
def test_an_update_that_a_hook_skips_is_no_overflow(skipped, strategy):
    found = skipped[strategy][0]
    assert found["error"] is None
    assert [step["scale"] for step in found["steps"]] == [2.0**12] * 2 + [2.0**13] * 3 + [2.0**14]
    assert [step["skipped"] for step in found["steps"]] == [0] * 6
    sums = [step["weights"] for step in found["steps"]]
    assert sums[0] == sums[1] != sums[2]


@pytest.fixture(scope="module")
def given_up(tmp_path_factory):
    cases = {strategy: {"strategy": strategy} for strategy in ("ddp", "fsdp", "deepspeed_stage_2")}
    return run_cases(JOB, tmp_path_factory.mktemp("given_up"), cases, one_pair=True, function="given_up")


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "deepspeed_stage_2"])
@pytest.mark.parametrize("rank", [0, 1])
def test_many_skipped_updates_in_a_row_end_the_run_with_a_diagnosis(given_up, strategy, rank):
    found = given_up[strategy][rank]
    assert "3 updates in a row were skipped: gradients overflow in float16" in found["error"]
    assert "where: step 4, epoch 1, rank 1" in found["error"]
    assert "inf first in the gradient of the output of blocks.1" in found["error"]
    assert 'precision="bf16"' in found["error"]
    assert len(found["error"].splitlines()) <= 12
    assert [step["skipped"] for step in found["steps"]] == [0, 1, 2]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    cases = {strategy: {"strategy": strategy} for strategy in ("ddp", "fsdp", "deepspeed_stage_3")}
    return run_cases(JOB, tmp_path_factory.mktemp("resumed"), cases, one_pair=True, function="resumed")


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "deepspeed_stage_3"])
def test_a_resumed_run_has_the_scale_and_its_counts(resumed, strategy):
    for found in resumed[strategy]:
        assert len(found["whole"]) == 6
        assert json.dumps(found["parts"]) == json.dumps(found["whole"])
        assert [step["scale"] for step in found["whole"]][2:] == [2.0**10] * 3 + [2.0**11]
