"""What users read and write of parameters: as on one device under every strategy, or an error."""

from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from helpers.ranks import run_cases

pytestmark = pytest.mark.launch  # for its length

JOB = Path(__file__).with_name("written_job.py")
job = load_job(JOB)
STRATEGIES = [name for name in job.STRATEGIES if name != "single"]
WAYS = ["in place", ".data in place", ".data assigned", "load_state_dict", "read", "in the step"]
ASSIGNED = "first.weight in parts\n  got: an assignment to .data, which a DTensor ignores"
READ = "__float__() of a DTensor, which has this rank's part alone"
LOST = "training_step writes to parameters that are gathered for it"
REFUSED = {
    **{(name, "in the step"): LOST for name in ("fsdp", "hsdp", "tensor")},
    ("deepspeed_stage_3", "in the step"): LOST,
    ("deepspeed_stage_3_divided", "in the step"): LOST,
    **{(name, ".data assigned"): ASSIGNED for name in ("fsdp", "hsdp", "tensor")},
    **{(name, "read"): READ for name in ("fsdp", "tensor")},
    ("deepspeed_stage_3_divided", "in place"): "got: mul_, of a parameter that is empty between two steps",
    ("deepspeed_stage_3_divided", ".data in place"): "got: data, of a parameter that is empty",
    ("deepspeed_stage_3_divided", ".data assigned"): "got: data, of a parameter that is empty",
    ("deepspeed_stage_3_divided", "load_state_dict"): "a state dict would have an empty tensor",
    ("deepspeed_stage_3_divided", "read"): "got: norm, of a parameter that is empty between two steps",
}


PAIRS = [(strategy, way) for strategy in STRATEGIES for way in WAYS]
# The others use the same code: they run under --soak.
USUAL = [
    *(
        (strategy, way)
        for strategy in ("fsdp", "deepspeed_stage_2", "deepspeed_stage_3_divided")
        for way in WAYS
    ),
    *((strategy, ".data assigned") for strategy in STRATEGIES),
    *((strategy, "read") for strategy in ("hsdp", "tensor")),
]


def pairs():
    for pair in PAIRS:
        yield pytest.param(*pair, marks=() if pair in USUAL else pytest.mark.soak)


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    cases = {
        f"{strategy} {way}": {"strategy": strategy, "way": way}
        for strategy, way in (PAIRS if request.config.getoption("--soak") else USUAL)
    }
    for strategy in ("deepspeed_stage_3", "deepspeed_stage_3_divided"):
        cases[f"{strategy} gathered"] = {"strategy": strategy, "way": "gathered"}
        cases[f"{strategy} none"] = {"strategy": strategy, "way": "none"}
    for strategy in ("ddp", "deepspeed_stage_2", "deepspeed_stage_3"):
        cases[f"{strategy} bf16-true"] = {"strategy": strategy, "way": "in place", "precision": "bf16-true"}
    return run_cases(JOB, tmp_path_factory.mktemp("written"), cases, one_pair=True)


def check_equal(ranks, expected):
    for name, value in ranks[0]["weights"].items():
        torch.testing.assert_close(torch.tensor(value), torch.tensor(expected[name]), msg=name)


@pytest.mark.parametrize(("strategy", "way"), [*pairs()])
def test_what_a_hook_writes_or_reads_is_as_on_one_device_or_an_error(found, tmp_path, strategy, way):
    ranks = found[f"{strategy} {way}"]
    if (strategy, way) in REFUSED:
        assert all(REFUSED[strategy, way] in rank["error"] for rank in ranks)
        return
    alone = job.on_rank(tmp_path, "single", way, devices=1)
    for rank in ranks:
        assert rank["error"] is None
        assert rank["seen"] == pytest.approx(alone["seen"])
    check_equal(ranks, alone["weights"])


@pytest.mark.parametrize("strategy", ["deepspeed_stage_3", "deepspeed_stage_3_divided"])
def test_what_is_written_as_the_error_says_trains(found, tmp_path, strategy):
    ranks = found[f"{strategy} gathered"]
    assert [rank["error"] for rank in ranks] == (
        [None, None]
        if strategy == "deepspeed_stage_3"
        else [rank["error"] for rank in found[f"{strategy} none"]]
    )
    check_equal(ranks, job.on_rank(tmp_path, "single", "in place", devices=1)["weights"])


def test_a_state_dict_with_empty_tensors_is_an_error_after_the_fit(found):
    for rank in found["deepspeed_stage_3_divided none"]:
        assert "ZeRO stage 3 holds first.weight in parts" in rank["error"]
        assert 'trainer.export(folder, "model")' in rank["error"]
    for rank in found["deepspeed_stage_3 none"]:
        assert rank["error"] is None
        assert rank["state"]["first.weight"] == [8, 4]


def test_what_is_written_in_bfloat16_is_taken_up(found):
    expected = found["ddp bf16-true"][0]["weights"]
    for strategy in ("deepspeed_stage_2", "deepspeed_stage_3"):
        assert found[f"{strategy} bf16-true"][0]["weights"] == expected
