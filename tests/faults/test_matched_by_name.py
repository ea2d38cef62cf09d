"""What a checkpoint holds goes to what has its name, wherever that stands by now."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint


class Net(TrainModule):
    """Two layers of one shape, assigned and given to the optimizer in the order of ``names``."""

    def __init__(self, names="ab"):
        super().__init__()
        for name in names:
            torch.manual_seed(ord(name))
            setattr(self, name, nn.Linear(3, 3))

    def training_step(self, batch):
        return self.b(torch.tanh(self.a(batch[0]))).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


class TwoOptimizers(Net):
    automatic_optimization = False

    def __init__(self, names="ab", optimizers="ab"):
        super().__init__(names)
        self.order = optimizers

    def training_step(self, batch):
        self.manual_backward(super().training_step(batch))
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self):
        return [torch.optim.Adam(getattr(self, name).parameters(), lr=0.05) for name in self.order]


class Counts(Callback):
    """Adds its own number in each step."""

    by = 1

    def __init__(self):
        self.count = 0

    def on_step_end(self):
        self.count += self.by

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class CountsTens(Counts):
    by = 10


def fit(folder, module, *callbacks, max_steps=8, resume=None):
    trainer = Trainer(
        accelerator="cpu", progress=False, loggers=False, run_dir=folder, name="n",
        callbacks=[*callbacks, Checkpoint(4, keep=None)], max_steps=max_steps,
    )  # fmt: skip
    samples = TensorDataset(torch.randn(12, 3, generator=torch.Generator().manual_seed(1)))
    trainer.fit(module, DataLoader(samples, 4), resume=resume)
    return module


@pytest.mark.fault(26)
def test_layers_in_another_order_get_their_own_weights_and_moments(tmp_path):
    whole = fit(tmp_path / "whole", Net()).state_dict()
    fit(tmp_path / "cut", Net(), max_steps=4)
    found = fit(tmp_path / "cut", Net("ba"), resume="latest").state_dict()
    assert list(found) == [*list(whole)[2:], *list(whole)[:2]]
    for name, value in whole.items():
        assert torch.equal(found[name], value), name


@pytest.mark.fault(26)
def test_optimizers_that_were_exchanged_are_refused(tmp_path):
    fit(tmp_path, TwoOptimizers(), max_steps=4)
    with pytest.raises(PacelineError) as raised:
        fit(tmp_path, TwoOptimizers(optimizers="ba"), resume="latest")
    assert "b.weight: not in this group of the checkpoint" in str(raised.value)
    assert "a.weight: not in this group of the checkpoint" in str(raised.value)


@pytest.mark.fault(26)
def test_callbacks_in_another_order_get_their_own_state(tmp_path):
    fit(tmp_path, Net(), Counts(), CountsTens(), max_steps=4)
    ones, tens = Counts(), CountsTens()
    fit(tmp_path, Net(), tens, ones, resume="latest")
    assert (ones.count, tens.count) == (8, 80)
