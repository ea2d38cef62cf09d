"""An update without the profiler's record is an update like any other."""

from __future__ import annotations

import functools
import warnings
from types import MethodType

import pytest
import torch
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from paceline.strategies.unrecorded import clear_gradients, take_step


def an_optimizer(kind=torch.optim.SGD, **options):
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    parameter.grad = torch.tensor([1.0, 10.0])
    return parameter, kind([parameter], lr=0.1, **options)


@pytest.mark.parametrize(
    "kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop]
)
def test_the_update_is_the_same_and_nothing_is_recorded(kind, monkeypatch):
    theirs, optimizer = an_optimizer(kind)
    optimizer.step()
    ours, optimizer = an_optimizer(kind)

    def refuse(*arguments):
        raise AssertionError("recorded")

    monkeypatch.setattr(torch.autograd.profiler.record_function, "__enter__", refuse)
    take_step(optimizer)
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours.detach(), torch.tensor([1.0, 2.0]))


def test_hooks_of_the_optimizer_and_of_all_are_called():
    parameter, optimizer = an_optimizer()
    called = []
    handles = [
        optimizer.register_step_pre_hook(lambda *_: called.append("pre")),
        optimizer.register_step_post_hook(lambda *_: called.append("post")),
    ]
    take_step(optimizer)
    assert called == ["pre", "post"]
    for handle in handles:
        handle.remove()
    handles = [
        register_optimizer_step_pre_hook(lambda *_: called.append("all pre")),
        register_optimizer_step_post_hook(lambda *_: called.append("all post")),
    ]
    try:
        take_step(optimizer)
    finally:
        for handle in handles:
            handle.remove()
    take_step(optimizer)
    assert called == ["pre", "post", "all pre", "all post"]
    assert parameter.tolist() == pytest.approx([0.7, -1.0])


def test_a_profiler_sees_it():
    _, optimizer = an_optimizer()
    with torch.autograd.profiler.profile() as profile:
        take_step(optimizer)
        clear_gradients(optimizer)
    names = {event.name for event in profile.function_events}
    assert {"Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"} <= names


def test_a_schedule_knows_of_it():
    parameter, optimizer = an_optimizer()
    schedule = StepLR(optimizer, 1, 0.5)
    take_step(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule.step()
    assert parameter.tolist() == pytest.approx([0.9, 1.0])


@pytest.mark.parametrize("scheduled", [False, True])
def test_what_stands_in_its_place_is_called(scheduled):
    parameter, optimizer = an_optimizer()
    called = []
    optimizer.step = MethodType(lambda self: called.append("mine"), optimizer)
    if scheduled:
        StepLR(optimizer, 1)
    take_step(optimizer)
    assert called == ["mine"]
    assert parameter.tolist() == [1.0, 2.0]


def test_what_is_wrapped_around_the_class_s_step_is_called(monkeypatch):
    called = []
    an_optimizer()  # torch records a class's steps from its first object on
    usual = torch.optim.SGD.step

    @functools.wraps(usual)
    def timed(self, *arguments):
        called.append("timed")
        return usual(self, *arguments)

    monkeypatch.setattr(torch.optim.SGD, "step", timed)
    parameter, optimizer = an_optimizer()
    take_step(optimizer)
    assert called == ["timed"]
    assert parameter.tolist() == pytest.approx([0.9, 1.0])


def test_a_subclass_that_takes_the_name_of_what_it_wraps_is_called():
    an_optimizer()
    called = []

    class Mine(torch.optim.SGD):
        @functools.wraps(torch.optim.SGD.step)
        def step(self, closure=None):
            called.append("mine")
            return super().step(closure)

    parameter, optimizer = an_optimizer(Mine)
    take_step(optimizer)
    assert called == ["mine"]
    assert parameter.tolist() == pytest.approx([0.9, 1.0])


def test_an_optimizer_of_the_user_s_own():
    class Own(torch.optim.Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= group["lr"]

    parameter, optimizer = an_optimizer(Own)
    take_step(optimizer)
    assert parameter.tolist() == pytest.approx([0.9, 1.9])
    assert parameter.requires_grad

    class Outside:
        """No optimizer of torch's."""

        def step(self):
            self.taken = True

    outside = Outside()
    take_step(outside)
    assert outside.taken


def test_gradients_are_cleared_as_the_optimizer_does():
    parameter, optimizer = an_optimizer()
    clear_gradients(optimizer)
    assert parameter.grad is None

    class Keeps(torch.optim.SGD):
        def zero_grad(self, set_to_none=True):
            super().zero_grad(set_to_none=False)

    parameter, optimizer = an_optimizer(Keeps)
    clear_gradients(optimizer)
    assert parameter.grad.tolist() == [0, 0]
    _, optimizer = an_optimizer()
    called = []
    optimizer.zero_grad = lambda: called.append("mine")
    clear_gradients(optimizer)
    assert called == ["mine"]
