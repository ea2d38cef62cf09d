"""What is trained changes under way: equal to one device, or an error in that step that names it."""

from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from helpers.ranks import run_cases
from torch import nn

from paceline.strategies.trained import TrainedChange, TrainedParameters

pytestmark = pytest.mark.launch  # for its length

JOB = Path(__file__).with_name("trained_job.py")
job = load_job(JOB)
WAYS = {  # a name that an error has
    "unfreeze": "first.weight",
    "freeze": "second.weight",
    "add_param_group": "first.weight",
    "add": "more.weight",
    "tie": "last.weight",
    "untie": "last.weight",
}
STRATEGIES = [name for name in job.STRATEGIES if name != "single"]
FLAGS = ("unfreeze", "freeze", "add_param_group")
"""The ways that leave each parameter what it is."""
EQUAL = {(strategy, way) for strategy in ("fsdp", "hsdp", "tensor") for way in FLAGS}
EQUAL |= {("ddp", way) for way in WAYS}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    cases = {
        f"{strategy} {way}": {"strategy": strategy, "way": way} for strategy in STRATEGIES for way in WAYS
    }
    cases["within"] = {"strategy": "ddp", "way": "unfreeze", "within": True}
    cases["dtypes"] = {"strategy": "fsdp", "way": "unfreeze", "frozen_dtype": "bfloat16"}
    cases["call"] = {"strategy": "fsdp", "way": "call"}
    return run_cases(JOB, tmp_path_factory.mktemp("trained"), cases, one_pair=True)


@pytest.mark.fault(51)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_change_of_what_is_trained_is_equal_or_an_error_in_that_step(found, tmp_path, strategy, way):
    ranks = found[f"{strategy} {way}"]
    if (strategy, way) not in EQUAL:
        for rank in ranks:
            assert rank["step"] == 3
            assert WAYS[way] in rank["error"]
            assert "strategy='ddp'" in rank["error"]
        return
    expected = job.on_rank(tmp_path, "single", way, devices=1)["weights"]
    for rank in ranks:
        assert rank["error"] is None
        assert rank["weights"].keys() == expected.keys()
        for name, value in rank["weights"].items():
            torch.testing.assert_close(torch.tensor(value), torch.tensor(expected[name]), msg=name)


def test_a_change_within_training_step_is_an_error(found):
    for rank in found["within"]:
        assert rank["step"] == 3
        assert rank["error"].startswith("what is trained was changed within training_step")
        assert "unfrozen: first.weight, first.bias" in rank["error"]


def test_what_is_unfrozen_beside_another_dtype_is_an_error_under_fsdp(found):
    for rank in found["dtypes"]:
        assert rank["step"] == 3
        assert rank["error"].startswith(
            "what was unfrozen is sharded together with parameters of another dtype"
        )
        assert "unfrozen: first.weight, first.bias (bfloat16, float32)" in rank["error"]
        assert "Freeze(patterns, until=...)" in rank["error"]


def test_a_network_that_a_hook_calls_while_it_is_in_shards_is_explained(found):
    for rank in found["call"]:
        assert "mixed torch.Tensor and DTensor" in rank["error"]
        note = next(note for note in rank["notes"] if "cannot be called in a hook" in note)
        assert "fix: call it in training_step, validation_step" in note


def test_a_change_is_noticed_once():
    module = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    trained = TrainedParameters(module, [optimizer], lambda *_: None)
    try:
        nn.Linear(1, 1)  # of another module
        assert trained.change() is None
        module[0].bias.requires_grad_(False)
        module[1].weight = module[0].weight
        del module[1].bias
        assert trained.change() == TrainedChange([], ["0.bias"], ["1.weight"], ["1.bias"], [])
        assert trained.change() is None
    finally:
        trained.close()
