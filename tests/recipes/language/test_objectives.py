"""Objectives of fine-tuning: the losses and gradients that TRL has for the same log-probabilities."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("trl")

from paceline.recipes.language.objectives import (
    Answers,
    preference_losses,
)

PAIRS = 7


@pytest.fixture
def answers():
    """Of chosen and rejected answers, by the model and by the reference."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 30, (2, PAIRS), generator=draw)
    means = -3 * torch.rand(2, 2, PAIRS, generator=draw, dtype=torch.float64)
    means[0, 0, 0] = -1e-4  # nearly certain: log(1 - p) has to be exact
    return [
        [Answers(mean * count, count) for mean, count in zip(two, tokens, strict=True)] for two in means
    ]


def gradients(loss, inputs):
    return [loss.detach(), *torch.autograd.grad(loss, inputs)]


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("objective", ["simpo", "orpo"])
def test_objectives_without_a_reference_are_those_of_trl(answers, objective, smoothing):
    from trl.experimental.cpo import CPOTrainer
    from trl.experimental.orpo import ORPOTrainer

    (chosen, rejected), _ = answers
    inputs = [one.log_probabilities.requires_grad_() for one in (chosen, rejected)]
    has = {
        "beta": 0.7,
        "alpha": 0.0,
        "loss_type": "simpo",
        "simpo_gamma": 0.3,
        "label_smoothing": smoothing,
    }
    trainer = SimpleNamespace(**has, accelerator=SimpleNamespace(device="cpu"))
    if objective == "simpo":
        theirs = CPOTrainer.cpo_loss(trainer, chosen.mean, rejected.mean)[0]
    else:
        theirs = -ORPOTrainer.odds_ratio_loss(trainer, chosen.mean, rejected.mean)[0].double()
    more = {"beta": 0.7, "gamma": 0.3, "label_smoothing": smoothing}
    ours = preference_losses(objective, chosen, rejected, **more)
    near = 1e-12 if objective == "simpo" else 1e-4  # theirs is in float32, where log(1 - p) is not exact
    for one, other in zip(gradients(ours.mean(), inputs), gradients(theirs.mean(), inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=near, atol=near)
