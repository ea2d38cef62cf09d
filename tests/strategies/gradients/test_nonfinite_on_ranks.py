"""FSDP: all ranks see that a gradient of one is not finite, whichever rank has its shard."""

import json
from pathlib import Path

import pytest
import torch
from helpers.ranks import run_ranks
from torch import nn

JOB = Path(__file__).with_name("nonfinite_ranks_job.py")
SECONDS = 120


def noted(folder, ranks):
    """What each rank of the job did."""
    run_ranks(JOB, ranks, ranks, folder, folder=folder, seconds=SECONDS)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return noted(tmp_path_factory.mktemp("reduction"), 2)


@pytest.mark.parametrize("name", ["one", "last", "clip", "clip, hooked", "clip, large"])
def test_all_ranks_leave_the_update_out(found, name):
    for rank in found:
        raised, skipped = rank["runs"][f"{name} raise"], rank["runs"][f"{name} skip"]
        assert "a gradient is not finite" in raised["raised"]
        assert not skipped["raised"]
        assert skipped["skipped"] == 1
        assert raised["weights"] == skipped["weights"] == ["1.0"] * 4


def test_clipping_by_norm_is_torch_s_own(found):
    expected = nn.Parameter(torch.ones(4))
    expected.grad = torch.tensor([3.0, 0.0, 4.0, 12.0])
    nn.utils.clip_grad_norm_([expected], 2.0)
    torch.optim.SGD([expected], lr=0.5).step()
    for rank in found:
        assert rank["runs"]["clip, finite"]["weights"] == list(map(str, expected.tolist()))
        assert rank["runs"]["clip, finite, hooked"]["weights"] == list(map(str, expected.tolist()))


def test_in_two_groups_of_hsdp_too(tmp_path):
    for rank in noted(tmp_path, 4):
        assert "a gradient is not finite" in rank["raise"]["raised"]
        assert (rank["skip"]["raised"], rank["skip"]["skipped"]) == ("", 1)
        assert rank["raise"]["weights"] == rank["skip"]["weights"] == ["1.0"] * 4


@pytest.mark.parametrize("name", ["weights", "hook", "wide"])
def test_what_becomes_infinite_after_the_reduction_is_found_on_all_ranks(found, name):
    for rank in found:
        assert "a gradient is not finite" in rank["runs"][name]["raised"]
        assert not {"inf", "-inf", "nan"} & set(rank["runs"][name]["weights"])


def test_of_float16_a_number_may_be_too_large_to_be_summed(found):
    for rank in found:
        assert rank["runs"]["half"]["raised"] == ""
        assert rank["runs"]["half"]["weights"] == ["1.0", "1.0", "1.0", "-10000.0"]


def test_a_fused_optimizer_is_reported_however_many_parts_have_one(found):
    for rank in found:
        assert "optimizer steps were skipped from this step on" in rank["runs"]["late"]["raised"]
        assert "nan" not in rank["runs"]["late"]["weights"]


@pytest.mark.parametrize("name", ["whole", "mixed"])
def test_a_run_after_one_that_failed_within_a_step_has_none_of_its_gradients(found, name):
    for rank in found:
        cut, after = rank["runs"][f"{name}, cut"], rank["runs"][f"{name}, after it"]
        assert cut["raised"] == "as asked"
        assert cut["weights"] == ["1.0"] * 4
        assert (after["raised"], after["weights"]) == ("", ["0.5", "0.5", "0.0", "0.5"])


def test_a_later_run_of_the_module_goes_by_its_own_setting(found):
    for rank in found:
        assert "a gradient is not finite" in rank["runs"]["again raise"]["raised"]
        assert rank["runs"]["again ignore"]["raised"] == ""
        assert rank["runs"]["again ignore"]["weights"] == ["0.5", "0.5", "-inf", "0.5"]
