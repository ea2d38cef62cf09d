"""Norms of gradients and weights against a plain loop, on any strategy."""

import json
import math
from pathlib import Path

import pytest
from helpers.averages import Net, X, fit
from helpers.messages import refusal, says
from helpers.pairwise import soaked
from helpers.ranks import run_strategies

from paceline import Run
from paceline.callbacks import Norms

JOB = Path(__file__).with_name("norms_job.py")


def by_hand(steps=6):
    """(gradient, weight) by step, and the same of each parameter."""
    module = Net()
    optimizer = module.configure_optimizers()
    found = {}
    for step, x in enumerate(X.split(4)[:steps], 1):
        module.loss((x,)).backward()
        each = {n: (p.grad.norm().item(), p.norm().item()) for n, p in module.named_parameters()}
        total = tuple(math.sqrt(sum(pair[part] ** 2 for pair in each.values())) for part in (0, 1))
        found[step] = total, each
        optimizer.step()
        optimizer.zero_grad()
    return found


def test_they_are_of_the_step_s_gradients_before_clipping_and_of_its_weights(tmp_path):
    norms = Norms("2st", each=True)
    settings = {"clip_grad_norm": 1e9, "max_epochs": 1}
    fit(Net(), norms, run_dir=tmp_path, name="n", loggers=["-tensorboard", "-curves"], **settings)
    found, expected = Run(tmp_path / "n" / "1").metrics, by_hand()
    assert found["norm/gradient"].steps == found["norm/weight"].steps == [2, 4, 6]
    for position, step in enumerate((2, 4, 6)):
        total, each = expected[step]
        assert found["norm/gradient"].values[position] == pytest.approx(total[0], rel=1e-5)
        assert found["norm/weight"].values[position] == pytest.approx(total[1], rel=1e-5)
        for name, (gradient, weight) in each.items():
            assert found[f"norm/gradient/{name}"].values[position] == pytest.approx(gradient, rel=1e-5)
            assert found[f"norm/weight/{name}"].values[position] == pytest.approx(weight, rel=1e-5)


def test_clipping_comes_after(tmp_path):
    fit(
        Net(),
        Norms(1),
        run_dir=tmp_path,
        name="n",
        loggers=["-tensorboard", "-curves"],
        clip_grad_norm=1e-3,
        max_steps=1,
    )
    assert Run(tmp_path / "n" / "1").metrics["norm/gradient"].values[0] == pytest.approx(
        by_hand(1)[1][0][0]
    )


def test_each_can_be_left_out(tmp_path):
    fit(
        Net(),
        Norms(1, weights=False),
        run_dir=tmp_path,
        name="n",
        loggers=["-tensorboard", "-curves"],
        max_steps=1,
    )
    assert [name for name in Run(tmp_path / "n" / "1").metrics if name.startswith("norm/")] == [
        "norm/gradient"
    ]


def test_wrong_arguments_are_reported_together():
    says(refusal(Norms, 0, each=2), "every", "each")


STRATEGIES = ["fsdp", "deepspeed_stage_2", "deepspeed_stage_3", "ddp", "deepspeed_stage_1"]
USUAL = STRATEGIES[:3]


@pytest.fixture(scope="module")
def ranks(request):
    return run_strategies(request, JOB, STRATEGIES, USUAL)


@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_ranks_have_the_norms_of_one_device(ranks, strategy):
    expected = by_hand()
    for rank in (0, 1):
        found = json.loads((ranks / f"{strategy}-{rank}.json").read_text())
        for step, (total, _) in expected.items():
            assert found["norms"][step - 1] == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_ranks_evaluate_each_sample_once(ranks, strategy):
    module = Net()
    losses = [module.loss((x,)).item() * len(x) for x in X[:21].split(4)]
    for rank in (0, 1):
        found = json.loads((ranks / f"{strategy}-{rank}.json").read_text())
        assert found["first evaluation"] == pytest.approx(sum(losses) / 21, rel=1e-5)
