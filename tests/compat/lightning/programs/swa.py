"""Stochastic weight averaging of a net with batch norm, from the middle of the run on."""

import lightning as L
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def blobs(size, seed):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(size) % 3
    x = torch.randn(size, 4, generator=generator) + torch.eye(3, 4)[y] * 2
    return DataLoader(TensorDataset(x, y), batch_size=9)


class Net(L.LightningModule):
    def __init__(self, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(4, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "epoch"}}


def main(max_epochs=5, **trainer_options):
    L.seed_everything(7)
    model = Net()
    trainer = L.Trainer(
        max_epochs=max_epochs,
        callbacks=[StochasticWeightAveraging(swa_lrs=0.02, swa_epoch_start=2, annealing_epochs=2)],
        log_every_n_steps=1,
        **trainer_options,
    )
    trainer.fit(model, blobs(54, 0), blobs(27, 1))
    return trainer, model
