"""Optimizers are fused where that can be, where nothing else was chosen, and never on a CPU by itself."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from paceline import Trainer, TrainModule
from paceline.strategies import Single, make_precision, make_strategy
from paceline.trainer.runtime.fused import choose_fused, is_fused

OFF = {"accelerator": "cpu", "progress": False, "loggers": False}
MAKERS = {
    "AdamW": lambda parameters: AdamW(parameters, lr=0.01),
    "Adam": lambda parameters: Adam(parameters, lr=0.01, weight_decay=0.1),
}


def trained(optimizer, net):
    torch.manual_seed(1)
    for _ in range(5):
        net(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in net.parameters()]


@pytest.fixture
def anywhere(monkeypatch):
    """As on an accelerator."""
    monkeypatch.setattr(Single, "fuses", True)


@pytest.mark.parametrize("name", MAKERS)
def test_fused_behind_construction_is_fused_at_construction(name):
    nets = [nn.Linear(6, 3)]
    nets += [copy.deepcopy(nets[0]) for _ in range(2)]
    later, usual = MAKERS[name](nets[0].parameters()), MAKERS[name](nets[2].parameters())
    defaults = {key: value for key, value in later.defaults.items() if key not in ("fused", "params")}
    if name == "AdamW":
        del defaults["decoupled_weight_decay"]
    at_once = type(later)(nets[1].parameters(), **defaults, fused=True)
    choose_fused([later])
    assert is_fused(later)
    assert not is_fused(usual)
    found, expected, near = (trained(o, n) for o, n in zip((later, at_once, usual), nets, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert all(torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(found, near, strict=True))
    assert vars(later).keys() >= {"_step_supports_amp_scaling"}
    assert later.state_dict()["state"][0].keys() == at_once.state_dict()["state"][0].keys()


@pytest.mark.parametrize(
    "make",
    [
        lambda p: AdamW(p, foreach=False),
        lambda p: AdamW(p, foreach=True),
        lambda p: AdamW(p, fused=False),
        lambda p: AdamW(p, differentiable=True),
        lambda p: SGD(p),
        lambda p: type("Own", (AdamW,), {})(p),
        lambda p: torch.optim.Adamax(p),
        lambda p: Adam([{"params": p}, {"params": [nn.Parameter(torch.zeros(2))], "foreach": True}]),
        lambda p: Adam([*p, nn.Parameter(torch.zeros(2, dtype=torch.complex64))]),
        lambda p: Adam([*p, nn.Parameter(torch.zeros(4, 4)[:, ::2])]),
    ],
)
def test_what_was_chosen_or_cannot_be_fused_is_left_as_it_is(make):
    optimizer = make(nn.Linear(2, 2).parameters())
    before = copy.deepcopy([dict(group, params=None) for group in optimizer.param_groups])
    choose_fused([optimizer])
    assert [dict(group, params=None) for group in optimizer.param_groups] == before
    assert "_step_supports_amp_scaling" not in vars(optimizer)


def test_an_optimizer_that_has_stepped_is_left_as_it_is():
    net = nn.Linear(6, 3)
    optimizer = AdamW(net.parameters())
    trained(optimizer, net)
    choose_fused([optimizer])
    assert not is_fused(optimizer)


@pytest.mark.parametrize(
    ("device", "precision", "fuses"),
    [
        ("cpu", "32", False),
        ("cuda", "32", True),
        ("cuda", "bf16", True),
        ("cuda", "fp16", False),
        ("mps", "32", False),
    ],
)
@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp", "deepspeed"])
def test_where_optimizers_are_fused(device, precision, fuses, strategy):
    found = make_strategy(strategy)
    found.environment = SimpleNamespace(device=torch.device(device))
    found.precision = make_precision(precision)
    assert found.fuses is (fuses and strategy != "deepspeed")


class Net(TrainModule):
    def __init__(self, fused):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(6, 3)

    def training_step(self, batch):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return AdamW(self.parameters(), lr=0.01, fused=self.hparams["fused"])


@pytest.mark.parametrize("written", [None, True])
@pytest.mark.parametrize("read", [None, True])
def test_how_to_compute_is_not_taken_from_a_checkpoint(tmp_path, written, read):
    batches = list(torch.randn(6, 4, 6, generator=torch.Generator().manual_seed(3)))

    def fit(fused, steps, **how):
        module = Net(fused)
        trainer = Trainer(**OFF, max_steps=steps, name="n", run_dir=tmp_path)
        trainer.fit(module, batches, **how)
        (group,) = trainer.optimization.optimizers[0].param_groups
        assert group["fused"] is fused
        return list(module.parameters())

    whole = fit(written, 6)
    fit(written, 3)
    for a, b in zip(whole, fit(read, 6, resume="latest"), strict=True):
        assert torch.equal(a, b) if read is written else torch.allclose(a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("chosen", [None, False])
def test_a_run_fuses_what_was_left_open(tmp_path, anywhere, chosen):
    trainer = Trainer(**OFF, max_steps=2, run_dir=tmp_path)
    trainer.fit(Net(chosen), list(torch.randn(2, 4, 6)))
    assert is_fused(trainer.optimization.optimizers[0]) is (chosen is None)
