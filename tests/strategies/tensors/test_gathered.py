"""``all_gather(sync_grads=True)``: a loss over the samples of all ranks has the gradients of one device."""

from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from helpers.ranks import run_ranks
from safetensors.torch import load_file

JOB = Path(__file__).with_name("gathered_job.py")
STRATEGIES = ["ddp", "fsdp", "hsdp", "deepspeed_stage_1", "deepspeed_stage_3"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gathered")
    load_job(JOB).train(folder, "single", 1)
    run_ranks(JOB, 2, 2, folder, ",".join(STRATEGIES), folder=folder)
    found = {path.parent.name: load_file(path) for path in folder.glob("*/model.safetensors")}
    return found | {"folder": folder}


@pytest.mark.parametrize("strategy", [*STRATEGIES, "lightning"])
def test_it_is_the_gradient_of_one_device(weights, strategy):
    tolerance = 1e-5 if strategy.startswith("deepspeed") else 1e-12
    for name, expected in weights["single"].items():
        found = weights[strategy][name].to(expected.dtype)
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_of_a_sharded_weight_each_rank_gets_the_whole_of_every_rank(weights, strategy):
    for rank in range(2):
        gathered = load_file(weights["folder"] / strategy / f"gathered-{rank}.safetensors")["weight"]
        assert torch.equal(gathered, torch.stack([weights[strategy]["net.0.weight"].to(gathered)] * 2))


def test_ranks_with_other_numbers_of_samples_are_refused(weights):
    (refused,) = {path.read_text() for path in weights["folder"].glob("refused-*")}
    assert "takes tensors of one shape" in refused
    assert "from 5 to 6 rows" in refused


def test_detached_it_is_another_one(weights):
    """So the comparison above could fail."""
    apart = [
        (weights["ddp-detached"][name] - value).abs().max() for name, value in weights["single"].items()
    ]
    assert max(apart) > 1e-3
