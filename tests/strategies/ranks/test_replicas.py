"""Copies of a weight that come apart are an error, on every rank, that says which and since when."""

from pathlib import Path

import pytest
import torch
from helpers.ranks import run_cases
from torch import nn

from paceline.strategies.ranks.replicas import _other_than_most, checksum

JOB = Path(__file__).with_name("replicas_job.py")
DRIFTS = {  # what the error says
    "ddp": ({"strategy": "ddp", "name": "net.2.bias"}, "net.2.bias", 4, 2),
    "ddp frozen": ({"strategy": "ddp", "name": "scale"}, "scale", 4, 2),
    "ddp before a save": (
        {"strategy": "ddp", "name": "net.2.bias", "step": 6, "save": 6},
        "net.2.bias",
        6,
        4,
    ),
    "ddp resumed": ({"strategy": "ddp", "name": "net.2.bias", "step": 5, "first": 3}, "net.2.bias", 5, 4),
    "hsdp": ({"strategy": "hsdp", "name": "net.0.weight"}, "net.0.weight", 4, 2),
    "tensor": ({"strategy": "tensor", "name": "net.3.bias"}, "net.3.bias", 4, 2),
    "deepspeed_stage_1": ({"strategy": "deepspeed_stage_1", "name": "net.2.bias"}, "net.2.bias", 4, 2),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    cases = {name: case for name, (case, *_) in DRIFTS.items()}
    return run_cases(JOB, tmp_path_factory.mktemp("replicas"), cases, one_pair=True)


@pytest.mark.fault(49)
@pytest.mark.parametrize("case", DRIFTS)
def test_a_rank_that_changes_a_weight_by_itself_is_named(found, case):
    _, name, step, before = DRIFTS[case]
    for rank in found[case]:
        assert rank["error"].startswith(
            "the ranks no longer hold the same parameters\n"
            f"  where: after step {step}; all were equal after step {before}\n"
            f"  got: rank 1 holds another value of {name} than rank 0; 1 of "
        )


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.bool]
)
def test_one_bit_changes_the_checksum(dtype):
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    before = checksum(tensor.T)
    assert checksum(tensor.T.clone()) == before
    bits = tensor.view(torch.uint8)
    bits[1, 0] ^= 1
    assert checksum(tensor.T) != before


def test_complex_numbers_and_nothing_have_a_checksum():
    assert checksum(torch.ones(2, dtype=torch.complex64)) != checksum(1j * torch.ones(2))
    assert checksum(nn.Parameter(torch.empty(0))) == 0


def test_the_checksum_of_a_large_tensor_depends_on_every_place():
    tensor = torch.zeros((1 << 22) + 3, dtype=torch.int8)
    seen = {int(checksum(tensor))}
    for place in (0, 1, (1 << 22) - 1, 1 << 22, (1 << 22) + 2):
        tensor[place] = 1
        seen.add(int(checksum(tensor)))
        tensor[place] = 0
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([0, 1, 1], "rank 0 holds another value of it than rank 1"),
        ([0, 0, 1], "rank 2 holds another value of it than rank 0"),
        ([0, 1, 2], "ranks 1, 2 hold another value of it than rank 0"),
        (
            [1, *range(12), *[1] * 27],
            "ranks 1, 3, 4, 5, 6, 7 and 5 more hold another value of it than rank 0",
        ),
    ],
)
def test_the_majority_is_right_else_the_first(values, text):
    assert _other_than_most([(0, value) for value in values]).format("it") == text


def test_a_shard_is_compared_with_its_copies():
    assert _other_than_most([(0, 5), (1, 6), (0, 5), (1, 7), (0, 5), (1, 7)]).format("it") == (
        "rank 1 holds another value of it than rank 3"
    )
