"""Regression that logs in every way there is: by step, by epoch, both, sums, dicts, in several hooks."""

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanSquaredError, MetricCollection, R2Score


class LinearRegression(L.LightningModule):
    def __init__(self, features=5, lr=0.05, l2=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.linear = nn.Linear(self.hparams.features, 1)
        self.metrics = MetricCollection([MeanSquaredError(), R2Score()], prefix="val_")

    def forward(self, x):
        return self.linear(x)

    def on_train_start(self):
        self.log("start", 1.0)

    def training_step(self, batch, batch_idx):
        x, y = batch
        error = nn.functional.mse_loss(self(x), y)
        penalty = self.hparams.l2 * self.linear.weight.square().sum()
        loss = error + penalty
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True, logger=True)
        self.log_dict({"error": error, "penalty": penalty}, on_step=True, on_epoch=True)
        self.log("rows", float(len(x)), reduce_fx="sum", on_step=False, on_epoch=True)
        self.log("last_row", y[-1], logger=False)
        self.log("batch", batch_idx, on_step=True)
        return loss

    def on_before_zero_grad(self, optimizer):
        self.log("weight", self.linear.weight.norm())

    def on_after_backward(self):
        if self.linear.weight.grad is not None:
            self.log("gradient", self.linear.weight.grad.norm(), on_epoch=True)

    def on_train_epoch_end(self):
        self.log("lr", self.trainer.optimizers[0].param_groups[0]["lr"])

    def validation_step(self, batch, batch_idx):
        x, y = batch
        y_hat = self(x)
        self.log("val_loss", nn.functional.mse_loss(y_hat, y), on_step=True, on_epoch=True)
        self.log("val_bias", (y_hat - y).mean(), batch_size=x.size(0), sync_dist=True)
        self.log_dict(self.metrics(y_hat, y), on_step=False, on_epoch=True)

    def on_validation_epoch_end(self):
        self.log_dict({"weights/first": self.linear.weight[0, 0], "weights/bias": self.linear.bias})

    def configure_optimizers(self):
        optimizer = torch.optim.Adagrad(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=3)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "epoch", "name": "poly", "strict": True},
        }


def main(max_epochs=3, **trainer_options):
    L.seed_everything(7)
    generator = torch.Generator().manual_seed(17)
    x = torch.randn(46, 5, generator=generator)
    y = x @ torch.arange(5.0)[:, None] + 0.1 * torch.randn(46, 1, generator=generator)
    train, val = TensorDataset(x[:30], y[:30]), TensorDataset(x[30:], y[30:])
    model = LinearRegression()
    trainer = L.Trainer(
        max_epochs=max_epochs,
        callbacks=[ModelCheckpoint(monitor="loss_epoch", save_top_k=1)],
        log_every_n_steps=2,
        **trainer_options,
    )
    trainer.fit(model, DataLoader(train, batch_size=8), DataLoader(val, batch_size=6))
    assert {"loss", "loss_step", "loss_epoch"} <= set(trainer.callback_metrics)
    return trainer, model
