"""A module of one linear layer, and 3 batches for it: for tests of the run around it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import TrainModule


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(3, 1)

    def training_step(self, batch):
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def data():
    return DataLoader(TensorDataset(torch.arange(36.0).reshape(12, 3)), 4)
