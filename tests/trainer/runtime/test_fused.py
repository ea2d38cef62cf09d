"""Which kernel an optimizer uses is the user's choice; what an unfused one costs is reported."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from paceline import Trainer, TrainModule
from paceline.strategies import DeepSpeed, Single
from paceline.trainer.loops.setup.startup_report import first_lines
from paceline.trainer.runtime.fused import unfused_note

OFF = {"accelerator": "cpu", "progress": False, "loggers": False}
CUDA = torch.device("cuda")


def make(kind=AdamW, **options):
    return kind(nn.Linear(2, 2).parameters(), **options)


def test_an_unfused_adam_on_an_accelerator_is_reported_with_its_cure():
    printed = unfused_note([make(), make(), make(Adam)], CUDA)
    assert "AdamW is not fused: the non-finite check waits for the device in each step" in printed
    assert "AdamW(..., fused=True) avoids that; Adam is not fused" in printed
    assert printed.count("AdamW is") == 1


@pytest.mark.parametrize(
    ("optimizer", "device"),
    [(make(fused=True), "cuda"), (make(SGD), "cuda"), (make(), "cpu"), (make(), "mps")],
    ids=["fused", "sgd", "cpu", "mps"],
)
def test_nothing_is_reported_where_fusing_would_save_nothing(optimizer, device):
    assert unfused_note([optimizer], torch.device(device)) == ""


class Elsewhere(Single):
    """Computes on the CPU and says that it is another device."""

    shown = torch.device("cpu")

    @property
    def device(self):
        return self.shown


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        ({}, True),
        ({"nonfinite": "ignore"}, False),
        ({"nonfinite": "skip"}, False),
        ({"fused": True}, False),
        ({"skips_by_itself": True}, False),
        ({"device": "cpu"}, False),
    ],
)
def test_the_first_lines_report_it_where_the_check_is_ours(changed, reported, tmp_path):
    strategy = Elsewhere()
    strategy.skips_by_itself = changed.get("skips_by_itself", False)
    trainer = Trainer(
        **OFF,
        max_steps=1,
        strategy=strategy,
        nonfinite=changed.get("nonfinite", "raise"),
        run_dir=tmp_path,
    )
    batches = list(torch.randn(2, 4, 6))
    trainer.fit(Net(changed.get("fused")), batches)
    strategy.shown = torch.device(changed.get("device", "cuda"))
    lines = first_lines(trainer._fit, trainer.optimizers, trainer._fit.feed, None, [])
    assert ("fused=True" in lines[-1]) is reported


def test_deepspeed_checks_by_itself():
    assert DeepSpeed(2).skips_by_itself


def test_an_optimizer_keeps_the_kernel_it_was_given(tmp_path):
    for chosen in (None, True, False):
        trainer = Trainer(**OFF, max_steps=1, run_dir=tmp_path)
        trainer.fit(Net(chosen), list(torch.randn(2, 4, 6)))
        assert trainer.optimizers[0].param_groups[0]["fused"] is chosen


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
        (group,) = trainer.optimizers[0].param_groups
        assert group["fused"] is fused
        return list(module.parameters())

    whole = fit(written, 6)
    fit(written, 3)
    for a, b in zip(whole, fit(read, 6, resume="latest"), strict=True):
        assert torch.equal(a, b) if read is written else torch.allclose(a, b, rtol=0, atol=1e-6)
