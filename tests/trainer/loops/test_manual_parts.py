"""Manual optimization, built without a Trainer."""

import math

import pytest
import torch
from torch import nn

from paceline import PacelineError
from paceline.strategies import Environment, Single, make_precision
from paceline.trainer.faults.nonfinite import Guard, NonfinitePolicy
from paceline.trainer.loops.manual_optimizer import ManualOptimization, ManualOptimizer
from paceline.trainer.state import TrainState


def parts(world=1, policy=None, **options):
    strategy = Single()
    strategy.attach(Environment(torch.device("cpu"), world_size=world), make_precision("32"))
    weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    sgd = torch.optim.SGD([weight], lr=1.0)
    guard = None
    if policy is not None:
        guard = Guard(
            strategy,
            TrainState(),
            [sgd],
            NonfinitePolicy.parse(policy),
            samples_of=lambda micro_batch: [],
            log_line=lambda text: None,
            automatic=False,
        )
    optimizer = ManualOptimizer(sgd, strategy, guard=guard, **options)
    return weight, optimizer, ManualOptimization([optimizer], strategy, guard)


def test_a_step_shows_gradients_then_clips_them_then_updates():
    seen = []
    weight, optimizer, manual = parts(
        clip_norm=1.0, before_step=lambda o: seen.append(weight.grad.tolist())
    )
    manual.backward((weight * torch.tensor([3.0, 4.0])).sum())
    assert not manual.has_stepped
    optimizer.step()
    assert manual.has_stepped
    assert seen == [[3.0, 4.0]]
    assert torch.allclose(weight.detach(), torch.tensor([2.4, 3.2]), atol=1e-5)


def test_everything_else_is_the_optimizers_own():
    weight, optimizer, _ = parts()
    assert optimizer.param_groups[0]["lr"] == 1.0
    weight.grad = torch.ones(2)
    optimizer.zero_grad()
    assert weight.grad is None


def test_losses_are_weighted_so_that_samples_count_alike():
    weight, _, manual = parts()
    manual.begin_step(0.5)
    manual.backward(weight.sum())
    assert weight.grad.tolist() == [0.5, 0.5]


def test_a_loss_that_is_not_finite_skips_its_update():
    weight, optimizer, manual = parts(policy="skip")
    manual.backward(weight.sum() * math.nan)
    optimizer.step()
    assert weight.tolist() == [3.0, 4.0]
    assert weight.grad is None


def test_a_closure_works_on_one_device_only():
    _, optimizer, _ = parts(world=2)
    with pytest.raises(PacelineError, match="works on one device"):
        optimizer.step(lambda: None)
