"""LearningRateMonitor: what it writes, against the optimizer's groups."""

import pytest
import torch
from helpers.averages import Net, fit
from helpers.messages import refusal, says
from torch.optim.lr_scheduler import StepLR

from paceline import Run
from paceline.callbacks import LearningRateMonitor


class Groups(Net):
    def configure_optimizers(self):
        first, *others = self.parameters()
        groups = [{"params": [first], "lr": 0.1, "weight_decay": 0.5}, {"params": others}]
        optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.99), weight_decay=0.0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": StepLR(optimizer, 1, 0.5), "interval": "step"},
        }


def rows(tmp_path, module, monitor, **settings):
    fit(
        module,
        monitor,
        run_dir=tmp_path,
        name="n",
        loggers=["-tensorboard", "-curves"],
        log_every="99st",
        **settings,
    )
    return Run(tmp_path / "n" / "1").metrics


def test_each_group_has_its_rate_momentum_and_decay(tmp_path):
    monitor = LearningRateMonitor("2st", momentum=True, weight_decay=True)
    found = rows(tmp_path, Groups(), monitor, max_steps=6)
    assert found["momentum/AdamW/group-0"].steps == [2, 4, 6]
    assert found["momentum/AdamW/group-1"].values == [0.8] * 3
    assert found["weight_decay/AdamW/group-0"].values == [0.5] * 3
    every = dict(zip(found["lr/AdamW/group-0"].steps, found["lr/AdamW/group-0"].values, strict=True))
    for step in (2, 4, 6):  # the rate that the step was made with
        assert every[step] == pytest.approx(0.1 * 0.5 ** (step - 1))


def test_rates_alone_by_default(tmp_path):
    found = rows(tmp_path, Net(), LearningRateMonitor(1), max_steps=2)
    assert found["lr/Adam"].values[-1] == 0.05
    assert not [name for name in found if name.startswith(("momentum", "weight_decay"))]


def test_wrong_arguments_are_reported_together():
    says(refusal(LearningRateMonitor, "1ep", momentum=1), "every", "momentum")
