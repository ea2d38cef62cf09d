"""MixUp and CutMix: what is mixed, against what was drawn, and in a resumed run."""

import pytest
import torch
from helpers.averages import assert_same, parameters
from helpers.stops import StopsAt
from torch import nn
from torch.distributions import Beta
from torch.nn.functional import cross_entropy, one_hot
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Checkpoint
from paceline.mixing import CutMix, MixUp

Y = torch.tensor([0, 1, 2, 1])


def test_mixup_is_the_mean_of_two_samples_and_of_their_labels():
    x = torch.randn(4, 3)
    torch.manual_seed(5)
    share, order = float(Beta(0.4, 0.4).sample()), torch.randperm(4)
    torch.manual_seed(5)
    mixed, labels = MixUp(3, alpha=0.4)(x, Y)
    torch.testing.assert_close(mixed, share * x + (1 - share) * x[order])
    hot = one_hot(Y, 3).float()
    torch.testing.assert_close(labels, share * hot + (1 - share) * hot[order])


def test_cutmix_mixes_labels_by_the_area_that_comes_from_the_other_image():
    x = torch.arange(1.0, 5.0).reshape(4, 1, 1, 1).expand(4, 2, 9, 7)  # an image has one value
    for seed in range(20):
        torch.manual_seed(seed)
        Beta(1.0, 1.0).sample()
        order = torch.randperm(4)
        torch.manual_seed(seed)
        mixed, labels = CutMix(3)(x, Y)
        for number in range(4):
            own = (mixed[number] == number + 1).float().mean()
            cut = mixed[number][mixed[number] != number + 1]
            assert (cut == order[number] + 1).all()
            if order[number] != number:
                hot = one_hot(Y, 3).float()
                expected = own * hot[number] + (1 - own) * hot[order[number]]
                torch.testing.assert_close(labels[number], expected)


def test_labels_that_are_parts_already_are_mixed_again():
    parts = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    _, labels = MixUp(2)(torch.randn(2, 3), parts)
    torch.testing.assert_close(labels.sum(1), torch.ones(2))


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.mix = nn.Linear(3, 3), MixUp(3)

    def on_after_batch_transfer(self, batch):
        return self.mix(*batch)

    def training_step(self, batch):
        return cross_entropy(self.net(batch[0]), batch[1], label_smoothing=0.1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def fit(module, *callbacks, resume=None, **settings):
    data = TensorDataset(torch.linspace(-1, 1, 36).reshape(12, 3), torch.arange(12) % 3)
    usual = {
        "accelerator": "cpu",
        "progress": False,
        "loggers": False,
        "checkpoint": False,
        "max_epochs": 2,
    }
    trainer = Trainer(callbacks=list(callbacks), **(usual | {"run_dir": None} | settings))
    trainer.fit(module, DataLoader(data, 4), resume=resume)


def test_a_resumed_run_draws_the_same(tmp_path):
    whole, second = Net(), Net()
    fit(whole)
    fit(Net(), StopsAt(2), Checkpoint(), run_dir=tmp_path, name="n")
    fit(second, Checkpoint(), resume="latest", run_dir=tmp_path, name="n")
    assert_same(parameters(second), parameters(whole), 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MixUp(0, alpha=-1), "classes"),
        (lambda: MixUp(2)(torch.randn(4, 3), Y), "takes labels of 2 classes"),
        (lambda: MixUp(3)(torch.randn(4, 3), torch.randn(4, 2)), "takes labels of 3 classes"),
        (lambda: CutMix(3)(torch.randn(4, 3), Y), "CutMix takes images"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(PacelineError, match=message):
        call()
