"""EMA and SWA on two ranks, under each strategy that spreads weights in another way."""

from pathlib import Path

import pytest
import torch
from helpers.averages import (
    Net,
    assert_same,
    averaged,
    fit,
    in_checkpoint,
    loader,
    lookahead_by_hand,
    mean,
    parameters,
    trained,
    weights_by_hand,
)
from helpers.pairwise import soaked
from helpers.ranks import run_strategies

from paceline.callbacks import EMA

JOB = Path(__file__).with_name("averages_job.py")
STRATEGIES = ["fsdp", "deepspeed_stage_3", "ddp", "deepspeed_stage_1"]
USUAL = STRATEGIES[:1]


@pytest.fixture(scope="module")
def ranks(request):
    return run_strategies(request, JOB, STRATEGIES, USUAL)


@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_ranks_have_the_average_of_one_device(ranks, strategy):
    weights = weights_by_hand()
    found = torch.load(ranks / f"{strategy}-ema.pt")
    assert_same(found["exported"], averaged(weights, [0.9] * 17))
    saved = ranks / "runs" / strategy / "1" / "checkpoints" / "step-00000018"
    assert_same(in_checkpoint(saved), averaged(weights, [0.9] * 17))
    assert_same(trained(saved), weights[-1])
    values, judged = averaged(weights, [0.9] * 17), Net()
    judged.load_state_dict(values)
    losses = [judged.loss(batch).item() for batch in loader()]
    assert found["val/loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)


@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_ranks_resume_to_the_same_average(ranks, strategy):
    found = torch.load(ranks / f"{strategy}-ema.pt")
    assert_same(found["resumed"], found["exported"], 0)


@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_one_device_resumes_what_ranks_averaged_and_they_what_it_did(ranks, strategy, tmp_path):
    module = Net()
    fit(module, EMA(0.9), resume=ranks / "runs" / f"{strategy}-cut" / "1" / "checkpoints" / "step-00000007")
    assert_same(parameters(module), averaged(weights_by_hand(), [0.9] * 17))
    found = torch.load(ranks / f"{strategy}-ema.pt")
    assert_same(found["of another"], averaged(weights_by_hand(), [0.9] * 17))


@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_ranks_look_ahead_as_one_device_does(ranks, strategy):
    found = torch.load(ranks / f"{strategy}-ema.pt")
    assert_same(found["lookahead"], lookahead_by_hand(4, 0.5))


@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_ranks_have_the_plain_mean_of_one_device(ranks, strategy):
    weights = weights_by_hand()
    found = torch.load(ranks / f"{strategy}-swa.pt")
    assert_same(found["plain"], mean([weights[step - 1] for step in (9, 12, 15, 18)]))


@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_ranks_average_the_statistics_of_their_parts(ranks, strategy):
    """Two ranks of 2 samples: the mean of both ranks' means is that of all."""
    found = torch.load(ranks / f"{strategy}-swa.pt")["norm"]
    module = Net(norm=True)
    module.load_state_dict(found)
    before = module.net[0](loader(24).dataset.tensors[0])
    torch.testing.assert_close(found["net.1.running_mean"], before.mean(0), rtol=1e-4, atol=1e-5)
