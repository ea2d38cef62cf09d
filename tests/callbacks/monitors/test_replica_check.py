"""ReplicaCheck: parameters that should be the same on all ranks, and are not."""

import json
from pathlib import Path

import pytest
from helpers.jobs import load_job
from helpers.ranks import run_ranks

from paceline import PacelineError
from paceline.callbacks import ReplicaCheck

JOB = Path(__file__).with_name("watch_job.py")
job = load_job(JOB)
SECONDS = 120
SHARDED = ["fsdp", "deepspeed_stage_3"]
EQUAL = ["equal", "hsdp", "deepspeed_stage_0", "deepspeed_stage_1", "deepspeed_stage_2"]


@pytest.fixture(scope="session")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replicas")
    cases = [f"replicas/{name}" for name in job.REPLICAS]
    run_ranks(JOB, 2, folder, *cases, folder=folder, seconds=SECONDS)
    return lambda name, rank=0: json.loads((folder / f"{name}.{rank}.json").read_text())


# -- on two ranks ------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", EQUAL)
def test_equal_replicas_are_no_news(seen, name, rank):
    found = seen(name, rank)
    assert (found["error"], found["steps"]) == (None, 4)
    assert not [line for line in found["log"] if "ReplicaCheck" in line]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_parameter_changed_on_one_rank_ends_every_rank(seen, rank):
    found = seen("changed", rank)
    assert found["steps"] == 3
    first, where, got, *_ = found["error"].splitlines()
    assert first == "the ranks no longer hold the same parameters"
    assert where.endswith("after step 3; all were equal after step 2")
    assert "rank 1 holds another value of first.bias than rank 0" in got
    assert "2 of 4 parameters differ" in got
    assert "fix:" in found["error"]
    assert len(found["error"].splitlines()) <= 12


@pytest.mark.parametrize(("name", "step"), [("changed-seen-later", 6), ("changed-seen-at-epoch-end", 12)])
def test_it_checks_as_often_as_it_is_set(seen, name, step):
    for rank in (0, 1):
        found = seen(name, rank)
        assert found["steps"] == step
        assert f"after step {step}" in found["error"]
        assert "rank 1 holds another value of last.bias than rank 0" in found["error"]


@pytest.mark.parametrize(("stage", "step"), [(0, 4), (2, 3)])
def test_under_zero_too(seen, stage, step):
    for rank in (0, 1):
        found = seen(f"deepspeed_stage_{stage}-changed", rank)
        assert found["steps"] == step
        assert "rank 1 holds another value of last.weight than rank 0" in found["error"]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", SHARDED)
def test_shards_are_no_replicas_which_is_said_once(seen, name, rank):
    found = seen(name, rank)
    assert (found["error"], found["steps"]) == (None, 4)
    assert len([line for line in found["log"] if "ReplicaCheck compares nothing" in line]) == 1


# -- without ranks -----------------------------------------------------------------------------


def test_alone_it_does_nothing():
    found = job.observe(job.Case(job.checked(), "single"), Path.cwd(), devices=1)
    assert (found["error"], found["steps"]) == (None, 4)


def test_a_cadence_that_is_none_is_an_error():
    with pytest.raises(PacelineError, match=r"ReplicaCheck: 1 invalid argument\n  every: "):
        ReplicaCheck(every="often")
