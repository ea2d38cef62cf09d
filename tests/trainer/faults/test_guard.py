"""The guard against non-finite losses and gradients, built without a Trainer."""

import math

import pytest
import torch
from torch import nn

from paceline import PacelineError
from paceline.strategies import Environment, Single, make_precision
from paceline.trainer.faults.nonfinite import Guard, NonfinitePolicy
from paceline.trainer.state import TrainState


@pytest.fixture
def parameter():
    return nn.Parameter(torch.ones(2))


def guard_of(parameter, policy="raise", lines=None):
    strategy = Single()
    strategy.attach(Environment(torch.device("cpu")), make_precision("32"))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    state = TrainState(global_step=4, epoch=1)
    log_line = print if lines is None else lines.append
    guard = Guard(
        strategy,
        state,
        [optimizer],
        NonfinitePolicy.parse(policy),
        samples_of=lambda micro_batch: [10 * micro_batch, 10 * micro_batch + 1],
        log_line=log_line,
    )
    return guard, optimizer, state


@pytest.mark.parametrize(
    ("setting", "most"), [("raise", 0), ("skip", 10), ("skip:100", 100), ("ignore", None)]
)
def test_a_policy_reads_the_trainers_setting(setting, most):
    policy = NonfinitePolicy.parse(setting)
    assert (None if policy is None else policy.most_skipped) == most


def test_finite_gradients_pass(parameter):
    guard, optimizer, _ = guard_of(parameter)
    parameter.grad = torch.ones(2)
    assert not guard.finds(optimizer)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_is_found(parameter, value):
    guard, optimizer, _ = guard_of(parameter)
    parameter.grad = torch.tensor([1.0, value])
    assert guard.finds(optimizer)
    with pytest.raises(
        PacelineError, match=r"a gradient is not finite.*step 5, epoch 2, dataset indices 0, 1"
    ):
        _flat(guard.hold_back, optimizer)


def test_a_loss_poisons_its_gradients_and_names_its_micro_batch(parameter):
    guard, optimizer, _ = guard_of(parameter)
    guard.poison(parameter.sum() * math.inf, micro_batch=1, value=math.inf).backward()
    assert parameter.grad.isnan().all()
    assert guard.finds(optimizer)
    with pytest.raises(PacelineError, match=r"the loss is inf.*dataset indices 10, 11"):
        _flat(guard.hold_back, optimizer, 2)


def test_skipping_counts_clears_gradients_and_ends_at_the_limit(parameter):
    lines = []
    guard, optimizer, state = guard_of(parameter, "skip:1", lines)
    for _ in range(2):
        parameter.grad = torch.full((2,), math.nan)
        assert guard.finds(optimizer)
        if state.skipped_steps:
            break
        guard.hold_back(optimizer)
        assert parameter.grad is None
    assert state.skipped_steps == 1
    assert "the update is skipped (1 of at most 1)" in lines[0]
    with pytest.raises(PacelineError, match="1 updates were skipped before"):
        guard.hold_back(optimizer)


def test_nothing_more_is_skipped_where_that_is_forbidden(parameter):
    guard, optimizer, state = guard_of(parameter, "skip")
    guard.skip_no_more()
    parameter.grad = torch.full((2,), math.nan)
    assert guard.finds(optimizer)
    with pytest.raises(PacelineError, match="a gradient is not finite"):
        guard.hold_back(optimizer)
    assert state.skipped_steps == 0


def _flat(call, *arguments):
    """Call it; the message of its error on one line."""
    try:
        call(*arguments)
    except PacelineError as error:
        raise PacelineError(" ".join(str(error).split())) from None
