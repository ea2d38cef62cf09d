"""A run with losses that spike at known steps, and the same by a plain loop."""

import copy

import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule

PLANTED = (11, 15)  # steps, from 1
X = torch.linspace(-1, 1, 144).reshape(72, 2)  # 18 steps of 4
Y = torch.tensor([100.0 if step + 1 in PLANTED else 0.3 for step in range(18) for _ in range(4)])


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(2, 1)

    def loss(self, x, y):
        return (self.net(x).squeeze(1) - y).square().mean()

    def training_step(self, batch):
        return self.loss(*batch)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
        rate = ExponentialLR(optimizer, 0.97)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


def fit(module, *callbacks, size=4, resume=None, **settings):
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": None, "max_epochs": 1}
    trainer = Trainer(callbacks=list(callbacks), checkpoint=False, name="n", **(usual | settings))
    trainer.fit(module, DataLoader(TensorDataset(X, Y), size), resume=resume)
    return trainer


def by_hand(skipped=(), rolled_back_to=(), average=None):
    """The last weights; with ``average`` also their exponential average.

    Args:
        skipped: Steps without an update.
        rolled_back_to: For each of them the step whose weights and moments are taken after it.
    """
    module = Net()
    configured = module.configure_optimizers()
    optimizer, rate = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    back, kept, mean = dict(zip(skipped, rolled_back_to, strict=False)), {}, None
    for step, (x, y) in enumerate(zip(X.split(4), Y.split(4), strict=True), 1):
        optimizer.zero_grad()
        module.loss(x, y).backward()
        if step not in skipped:
            optimizer.step()
            rate.step()
        weights = {name: p.detach().clone() for name, p in module.named_parameters()}
        if average is not None:
            mean = weights if mean is None else _averaged(mean, weights, average)
        if step in back:
            states, moments, mean_then = kept[back[step]]
            module.load_state_dict(states)
            rates = [group["lr"] for group in optimizer.param_groups]
            optimizer.load_state_dict(copy.deepcopy(moments))
            for group, lr in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = lr
            mean = mean_then
        kept[step] = (
            {name: p.detach().clone() for name, p in module.named_parameters()},
            copy.deepcopy(optimizer.state_dict()),
            mean,
        )
    weights = kept[18][0]
    return weights if average is None else (weights, mean)


def _averaged(mean, weights, decay):
    return {name: decay * mean[name] + (1 - decay) * weights[name] for name in weights}
