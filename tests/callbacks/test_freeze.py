"""Freeze: which parameters are trained when, against a plain loop, on any strategy."""

from pathlib import Path

import pytest
import torch
from helpers.averages import assert_same, parameters
from helpers.freezing import Net, by_hand, fit
from helpers.messages import refusal, says
from helpers.pairwise import soaked
from helpers.ranks import run_strategies
from helpers.stops import StopsAt

from paceline import PacelineError
from paceline.callbacks import Callback, Checkpoint, Freeze

JOB = Path(__file__).with_name("freeze_job.py")


class Trained(Callback):
    def __init__(self):
        self.found = []

    def on_step_start(self, trainer):
        self.found.append([n for n, p in trainer.module.named_parameters() if p.requires_grad])


@pytest.mark.parametrize(("until", "steps"), [("1ep", 6), ("0.5ep", 3), (8, 8), (None, 18)])
def test_they_are_frozen_until_then_and_trained_from_there_on(until, steps, capsys):
    module, trained = Net(), Trained()
    fit(module, Freeze("backbone.*", until), trained)
    head, everything = ["head.weight", "head.bias"], [n for n, _ in module.named_parameters()]
    assert trained.found == [head] * steps + [everything] * (18 - steps)
    assert_same(parameters(module), by_hand(steps), 0)
    line = f"2 parameters are trained from step {steps + 1} on: backbone.*"
    assert (line in capsys.readouterr().out) == (until is not None)
    assert all(p.requires_grad for p in module.parameters())  # as before


def test_several_patterns_and_several_of_them():
    trained = Trained()
    fit(Net(), Freeze(["*.bias"], "1ep"), Freeze("backbone.0.weight", "2ep", name="b"), trained)
    assert [sorted(found) for found in trained.found[::6]] == [
        ["head.weight"],
        ["backbone.0.bias", "head.bias", "head.weight"],
        ["backbone.0.bias", "backbone.0.weight", "head.bias", "head.weight"],
    ]


def test_what_was_frozen_before_stays_so():
    module = Net()
    module.backbone[0].bias.requires_grad_(False)
    before = module.backbone[0].bias.clone()
    fit(module, Freeze("backbone.*", "1ep"))
    assert torch.equal(module.backbone[0].bias, before)
    assert not module.backbone[0].bias.requires_grad


@pytest.mark.parametrize("stop", [4, 6, 9])
def test_a_resumed_run_ends_the_same_to_the_bit(tmp_path, stop):
    second = Net()
    kept = {"run_dir": tmp_path}
    fit(Net(), Freeze("backbone.*", "1ep"), StopsAt(stop), Checkpoint(), **kept)
    fit(second, Freeze("backbone.*", "1ep"), Checkpoint(), resume="latest", **kept)
    assert_same(parameters(second), by_hand(6), 0)


def test_an_error_leaves_them_trainable():
    class Fails(Net):
        def training_step(self, batch):
            raise RuntimeError("planted")

    module = Fails()
    with pytest.raises(RuntimeError, match="planted"):
        fit(module, Freeze("backbone.*"))
    assert all(p.requires_grad for p in module.parameters())


def test_a_pattern_that_matches_nothing_is_an_error():
    with pytest.raises(PacelineError, match=r"did you mean: backbone\.\*"):
        fit(Net(), Freeze("bakbone.*"))


def test_two_of_them_may_not_hold_the_same_parameters():
    both = [Freeze("backbone.*", "1ep"), Freeze("*.weight", name="weights")]
    with pytest.raises(PacelineError, match="two Freeze callbacks hold the same parameters"):
        fit(Net(), *both)


def test_parameters_that_are_in_no_optimizer_cannot_be_trained_later():
    class Filtered(Net):
        def configure_optimizers(self):
            return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)

    with pytest.raises(PacelineError, match="frozen ones are skipped"):
        fit(Filtered(), Freeze("backbone.*", "1ep"))
    fit(Filtered(), Freeze("backbone.*"))


def test_wrong_arguments_are_reported_together():
    says(refusal(Freeze, [], "x"), "patterns", "until")


STRATEGIES = ["ddp", "fsdp", "deepspeed_stage_1", "deepspeed_stage_3"]
USUAL = STRATEGIES[:3]


@pytest.fixture(scope="module")
def ranks(request):
    return run_strategies(request, JOB, STRATEGIES, USUAL)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_train_them_from_the_same_step_on_and_resume(ranks, strategy):
    found = torch.load(ranks / f"{strategy}.pt")
    assert_same(found["until"], by_hand(6), 1e-5)
    assert_same(found["resumed"], found["until"], 0)


@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_ranks_leave_them_as_they_are(ranks, strategy):
    assert_same(torch.load(ranks / f"{strategy}.pt")["whole run"], by_hand(18), 1e-5)


@pytest.mark.parametrize("strategy", soaked(STRATEGIES[2:], USUAL))
def test_zero_refuses_to_train_them_later(ranks, strategy):
    later, group = torch.load(ranks / f"{strategy}.pt")["refused"]
    assert "fixes at the start which parameters are trained" in later
    assert "takes no parameter group of which nothing is trained" in group
    assert "got: backbone.0.weight, backbone.0.bias" in group
