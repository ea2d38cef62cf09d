"""Trying things out: limits of batches, validation twice an epoch, several fits with one model."""

import lightning as L
import torch
import torch.nn as nn
import torchmetrics
from torch.utils.data import DataLoader, TensorDataset


class Spiral(L.LightningModule):
    def __init__(self, width=24, lr=0.01):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=2)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train/loss", loss)
        self.log("train/largest", loss, reduce_fx="max", on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.accuracy.update(logits, y)
        self.log("val/loss", nn.functional.cross_entropy(logits, y))
        self.log("val/smallest", logits.min(), reduce_fx=torch.min)
        self.log("val/acc", self.accuracy)

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test/loss", nn.functional.cross_entropy(self(x), y))

    def predict_step(self, batch, batch_idx):
        return self(batch[0]).softmax(-1)

    def configure_optimizers(self):
        return torch.optim.Adagrad(self.parameters(), lr=self.hparams.lr)


def make_loader(size, seed):
    generator = torch.Generator().manual_seed(seed)
    angle = 6 * torch.rand(size, generator=generator)
    y = torch.arange(size) % 2
    radius = angle / 6 * (1 - 2 * y)
    x = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], 1)
    return DataLoader(TensorDataset(x, y), batch_size=4)


def main(max_epochs=2, **trainer_options):
    L.seed_everything(7)
    model = Spiral()
    limits = {
        "limit_train_batches": 10,
        "limit_val_batches": 0.5,
        "limit_test_batches": 3,
        "limit_predict_batches": 2,
        "val_check_interval": 0.5,
        "num_sanity_val_steps": -1,
        "max_epochs": max_epochs,
        "log_every_n_steps": 1,
    }
    trainer = L.Trainer(**{**limits, **trainer_options})
    trainer.fit(model, make_loader(60, 0), make_loader(24, 1))
    assert trainer.num_val_batches == [3]
    trainer.test(dataloaders=make_loader(30, 2))
    probabilities = trainer.predict(model, make_loader(30, 3))
    assert [tuple(p.shape) for p in probabilities] == [(4, 2)] * 2

    # once more on a few batches, without anything around it
    again = L.Trainer(
        **{
            "overfit_batches": 2,
            "max_epochs": max_epochs + 1,
            "enable_checkpointing": False,
            "logger": False,
            "log_every_n_steps": 1,
            **trainer_options,
        }
    )
    again.fit(model, make_loader(60, 0))

    quick = L.Trainer(fast_dev_run=2, **trainer_options)
    quick.fit(model, make_loader(60, 0), make_loader(24, 1))
    return again, model
