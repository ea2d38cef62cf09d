"""ReplicaCheck: parameters that should be the same on all ranks, and are not."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.jobs import load_job
from helpers.ranks import run_ranks
from torch import nn

from paceline import PacelineError
from paceline.callbacks import ReplicaCheck
from paceline.strategies.sharding import is_sharded

JOB = Path(__file__).with_name("watch_job.py")
job = load_job(JOB)
SECONDS = 120
SHARDED = ["fsdp", "hsdp", "deepspeed_stage_3"]
EQUAL = ["equal", "deepspeed_stage_0", "deepspeed_stage_1", "deepspeed_stage_2"]


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
    assert where.endswith("after step 3")
    assert "rank 1 holds another value of first.bias than rank 0" in got
    assert "2 of 4 parameters differ" in got
    assert "fix:" in found["error"]
    assert len(found["error"].splitlines()) <= 12


@pytest.mark.parametrize(("name", "step"), [("changed-seen-later", 4), ("changed-seen-at-epoch-end", 12)])
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


class Ranks:
    """A trainer at a step boundary, which gets the other ranks' checksums."""

    def __init__(self, module, *others, world=None):
        self.module, self.others = module, others
        self.world_size = len(others) + 1 if world is None else world
        self.strategy = SimpleNamespace(is_sharded=is_sharded, all_gather=self.all_gather)
        self.steps_per_epoch, self.global_step = None, 7
        self.said, self.gathered = [], []

    def all_gather(self, value):
        self.gathered.append(value)
        return [value, *(value | other for other in self.others)]

    def seconds(self):
        return 0.0

    def is_due(self, cadence):
        return True

    def log_line(self, text):
        self.said.append(text)


def checked(trainer):
    check = ReplicaCheck(every=1)
    check.on_fit_start(trainer)
    check.on_step_boundary(trainer)
    return trainer


def test_the_majority_is_right():
    with pytest.raises(PacelineError, match="rank 0 holds another value of weight than the other 2 ranks"):
        checked(Ranks(nn.Linear(2, 2), {"weight": 1}, {"weight": 1}))
    with pytest.raises(PacelineError, match="rank 2 holds another value of weight than the other 2 ranks"):
        checked(Ranks(nn.Linear(2, 2), {}, {"weight": 1}))


def test_without_a_majority_rank_0_is():
    with pytest.raises(PacelineError, match="ranks 1, 2 hold another value of bias than rank 0"):
        checked(Ranks(nn.Linear(2, 2), {"bias": 1}, {"bias": 2}))


def test_many_ranks_are_counted():
    others = [{"bias": rank} if rank < 12 else {} for rank in range(1, 40)]
    with pytest.raises(PacelineError, match="ranks 1, 2, 3, 4, 5, 6 and 5 more hold another value"):
        checked(Ranks(nn.Linear(2, 2), *others))


def test_every_bit_of_every_kind_counts():
    values = [torch.zeros(()), torch.zeros(0), torch.zeros(3, 2).T, torch.zeros(2, dtype=torch.bfloat16)]
    values += [torch.zeros(2, dtype=torch.complex64)]
    module = nn.ParameterList([nn.Parameter(v) for v in values])
    (before,) = checked(Ranks(module, {})).gathered
    assert list(before) == ["0", "1", "2", "3", "4"]
    for name in ("0", "2", "3", "4"):
        parameter = module.get_parameter(name)
        parameter.data.view(-1)[-1:].fill_(-0.0) if name == "0" else parameter.data.fill_(1e-30)
        (now,) = checked(Ranks(module, {})).gathered
        assert [n for n in now if now[n] != before[n]] == [name]
        parameter.data.zero_()


def test_sharded_parameters_are_passed_over():
    module = nn.Linear(2, 2)
    module.weight.ds_id = 1
    trainer = checked(Ranks(module, {}))
    assert [list(found) for found in trainer.gathered] == [["bias"]]
    assert not trainer.said


def test_alone_it_does_nothing():
    trainer = checked(Ranks(nn.Linear(2, 2), world=1))
    assert not trainer.gathered
    assert not trainer.said
    found = job.observe(job.Case(job.checked(), "single"), Path.cwd(), devices=1)
    assert (found["error"], found["steps"]) == (None, 4)


def test_a_cadence_that_is_none_is_an_error():
    with pytest.raises(PacelineError, match=r"ReplicaCheck: 1 invalid argument\n  every: "):
        ReplicaCheck(every="often")
