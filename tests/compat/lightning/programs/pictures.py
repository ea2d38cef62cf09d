"""Scalars, histograms and pictures written to TensorBoard by hand, beside what is logged."""

from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Painter(L.LightningModule):
    def __init__(self, width: int = 10, lr: float = 5e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 3), nn.Sigmoid())
        self.example_input_array = torch.zeros(4, 2)

    def forward(self, positions):
        return self.net(positions)

    def training_step(self, batch, batch_idx):
        positions, colours = batch
        loss = nn.functional.mse_loss(self(positions), colours)
        self.log("train/loss", loss)
        if self.global_step % 4 == 0:
            self.logger.experiment.add_scalar("by_hand/loss", loss.item(), self.global_step)
        return loss

    def validation_step(self, batch, batch_idx):
        positions, colours = batch
        self.log("hp_metric", nn.functional.mse_loss(self(positions), colours))

    def on_train_epoch_end(self):
        tensorboard = self.logger.experiment
        for name, parameter in self.named_parameters():
            tensorboard.add_histogram(name, parameter, self.current_epoch)

    def on_validation_epoch_end(self):
        if self.trainer.sanity_checking:
            return
        axis = torch.linspace(-1, 1, 8, device=self.device)
        picture = self(torch.cartesian_prod(axis, axis)).T.reshape(3, 8, 8)
        self.logger.experiment.add_image("picture", picture, global_step=self.global_step)
        for logger in self.loggers:
            logger.log_metrics({"brightness": picture.mean().item()}, step=self.global_step)

    def configure_optimizers(self):
        optimizer = torch.optim.RMSprop(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.7)
        return ([optimizer], [scheduler])


def main(max_epochs=2, **trainer_options):
    L.seed_everything(7)
    generator = torch.Generator().manual_seed(14)
    positions = 2 * torch.rand(64, 2, generator=generator) - 1
    colours = torch.stack(
        [positions[:, 0] > 0, positions[:, 1] > 0, positions.norm(dim=1) < 0.7], 1
    ).float()
    loader = DataLoader(TensorDataset(positions, colours), batch_size=8)
    model = Painter()
    logger = TensorBoardLogger(save_dir="runs", name="painter", default_hp_metric=False)
    trainer = L.Trainer(max_epochs=max_epochs, logger=logger, log_every_n_steps=4, **trainer_options)
    trainer.fit(model, loader, loader)
    if trainer.is_global_zero:
        assert list(Path(trainer.logger.log_dir).glob("events.out.tfevents.*"))
    return trainer, model
