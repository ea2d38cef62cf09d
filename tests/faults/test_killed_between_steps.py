"""SIGKILL between two steps, at every step: resumed, a run ends as one that nothing happened to."""

import json
import signal
from itertools import pairwise
from pathlib import Path

import pytest
from helpers.ranks import run_ranks

pytestmark = pytest.mark.launch  # for its length

JOB = Path(__file__).with_name("killed_job.py")
SECONDS = 120
EVERY, STEPS, SAMPLES = 2, 12, 14


@pytest.fixture(scope="module", params=[1, 2], ids=["one device", "two ranks"])
def killed(request, tmp_path_factory):
    """What came of the kills; all runs of one number of ranks are one process' forks."""
    place = tmp_path_factory.mktemp("killed")
    run_ranks(JOB, 1, place, request.param, folder=place, seconds=SECONDS)
    return json.loads((place / "kills.json").read_text()) | {"devices": request.param}


def last_of(order):
    """What the last attempt at each step read, step by step."""
    return [samples for _, samples in sorted(dict(order).items())]


def started_at(order):
    """The first step after a resume."""
    numbers = [step for step, _ in order]
    return next((b for a, b in pairwise(numbers) if b <= a), None)


def printed(case):
    return f"rank {case['rank']} killed after step {case['step']}\n{case['output']}"


@pytest.mark.fault(1)
def test_every_step_had_its_kill_and_the_run_is_one_that_could_differ(killed):
    whole, devices = killed["whole"], killed["devices"]
    assert set(killed["codes"]) == {0}, whole["output"]
    if devices == 1:
        assert [case["step"] for case in killed["cases"]] == list(range(1, STEPS))
    for case in killed["cases"]:
        assert case["codes"][case["rank"]] == -signal.SIGKILL, printed(case)
        assert None not in case["codes"], printed(case)  # no rank had to be ended
    epochs = [
        [sample for step in range(at, at + 4) for rank in whole["order"] for sample in rank[step][1]]
        for at in range(0, STEPS, 4)
    ]
    assert all(sorted(epoch) == list(range(SAMPLES)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.fault(1)
def test_weights_and_optimizer_state_are_bit_identical(killed):
    whole = killed["whole"]["end"]
    assert any(name.startswith("optim.") for name in whole["tensors"])
    for case in killed["cases"]:
        assert set(case["resumed"]) == {0}, printed(case)
        for part in ("weights", "tensors", "state", "finished", "pointers"):
            assert case["end"][part] == whole[part], f"{part}, {printed(case)}"


@pytest.mark.fault(1)
def test_every_row_of_metrics_is_bit_identical(killed):
    rows = killed["whole"]["rows"]
    assert {"train/loss", "train/drawn"} <= rows[0].keys()
    for case in killed["cases"]:
        if case["end"]["run"] == "1":
            assert case["rows"] == rows, printed(case)


@pytest.mark.fault(1)
def test_the_order_of_the_samples_is_the_same(killed):
    for case in killed["cases"]:
        for mine, whole in zip(case["order"], killed["whole"]["order"], strict=True):
            assert last_of(mine) == last_of(whole), printed(case)
            for step, samples in mine:  # each attempt read the same
                assert samples == whole[step - 1][1], printed(case)


@pytest.mark.fault(1)
def test_no_more_is_computed_again_than_what_no_checkpoint_has(killed):
    for case in killed["cases"]:
        newest = case["before"]["finished"][-1:]
        after = int(newest[0].removeprefix("step-")) if newest else 0
        assert after >= case["step"] - case["step"] % EVERY - EVERY, printed(case)
        assert started_at(case["order"][0]) in (after + 1, None), printed(case)
        assert (case["end"]["run"] == "1") == bool(newest), printed(case)
