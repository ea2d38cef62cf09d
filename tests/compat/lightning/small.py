"""A small Lightning module and its data, for tests of the room it runs in."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline.compat.lightning as L


class Net(L.LightningModule):
    def __init__(self, lr=0.1, width=2):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch[0]).square().mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layer(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def data(size=12):
    return DataLoader(TensorDataset(torch.arange(3.0 * size).reshape(size, 3) / 10), 4)


def trainer(**options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return L.Trainer(**quiet | {"max_epochs": 1} | options)
