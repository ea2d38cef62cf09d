"""A strategy's step is the optimizer's own: hooks, profiler, schedules and subclasses see each one."""

import warnings
from types import MethodType

import pytest
import torch
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from paceline.strategies import Environment, Single, make_precision


@pytest.fixture
def strategy():
    found = Single()
    found.attach(Environment(device=torch.device("cpu")), make_precision("32"))
    return found


def make_optimizer(kind=torch.optim.SGD, **options):
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    parameter.grad = torch.tensor([1.0, 10.0])
    return parameter, kind([parameter], lr=0.1, **options)


def test_torch_records_each_step_and_each_clearing(strategy, monkeypatch):
    recorded = []
    enter = torch.autograd.profiler.record_function.__enter__

    def note(self):
        recorded.append(self.name)
        return enter(self)

    monkeypatch.setattr(torch.autograd.profiler.record_function, "__enter__", note)
    parameter, optimizer = make_optimizer()
    assert strategy.step(optimizer)
    assert recorded == ["Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"]
    assert parameter.tolist() == pytest.approx([0.9, 1.0])
    assert parameter.grad is None


def test_a_profiler_sees_it(strategy):
    _, optimizer = make_optimizer()
    with torch.autograd.profiler.profile() as profile:
        strategy.step(optimizer)
    names = {event.name for event in profile.function_events}
    assert {"Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"} <= names


def test_hooks_of_the_optimizer_and_of_all_optimizers_are_called(strategy):
    _, optimizer = make_optimizer()
    called = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: called.append("every pre")),
        optimizer.register_step_pre_hook(lambda *_: called.append("pre")),
        optimizer.register_step_post_hook(lambda *_: called.append("post")),
        register_optimizer_step_post_hook(lambda *_: called.append("every post")),
    ]
    try:
        strategy.step(optimizer)
    finally:
        for handle in handles:
            handle.remove()
    assert sorted(called) == ["every post", "every pre", "post", "pre"]


def test_a_schedule_knows_of_the_step(strategy):
    parameter, optimizer = make_optimizer()
    schedule = StepLR(optimizer, 1, 0.5)
    strategy.step(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule.step()
    assert parameter.tolist() == pytest.approx([0.9, 1.0])


def test_a_replaced_step_is_called(strategy):
    parameter, optimizer = make_optimizer()
    called = []
    optimizer.step = MethodType(lambda self: called.append("mine"), optimizer)
    strategy.step(optimizer)
    assert called == ["mine"]
    assert parameter.tolist() == [1.0, 2.0]


def test_an_overridden_zero_grad_is_called(strategy):
    class Keeps(torch.optim.SGD):
        def zero_grad(self):
            super().zero_grad(set_to_none=False)

    parameter, optimizer = make_optimizer(Keeps)
    strategy.step(optimizer)
    assert parameter.grad.tolist() == [0, 0]
