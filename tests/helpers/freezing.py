"""A net with a backbone that is frozen for a while, and the same by a plain loop."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule

X = torch.linspace(-1, 1, 48).reshape(24, 2)


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Linear(2, 5), nn.Tanh())
        self.head = nn.Linear(5, 1)

    def training_step(self, batch):
        x = batch[0]
        return (self.head(self.backbone(x)) - x.prod(1, keepdim=True)).square().mean()

    def configure_optimizers(self):
        groups = [{"params": self.backbone.parameters(), "lr": 0.01}, {"params": self.head.parameters()}]
        return torch.optim.AdamW(groups, lr=0.05, weight_decay=0.1)


def fit(module, *callbacks, size=4, resume=None, **settings):
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": None, "max_epochs": 3}
    trainer = Trainer(callbacks=list(callbacks), checkpoint=False, name="n", **(usual | settings))
    trainer.fit(module, DataLoader(TensorDataset(X), size), resume=resume)
    return trainer


def by_hand(steps):
    """The weights after 18 steps, of which the backbone is frozen in the first ``steps``."""
    module = Net()
    optimizer = module.configure_optimizers()
    for step in range(18):
        for parameter in module.backbone.parameters():
            parameter.requires_grad_(step >= steps)
        module.training_step((X.split(4)[step % 6],)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach().clone() for name, p in module.named_parameters()}
