"""Everything that watches a run: the learning rate, the device, the time, an accumulation that changes."""

from datetime import timedelta

import lightning as L
import torch
from lightning.pytorch.callbacks import (
    DeviceStatsMonitor,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateMonitor,
    ModelCheckpoint,
    Timer,
)
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TwoSchedules(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.smooth_l1_loss(self.model(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val/loss", nn.functional.smooth_l1_loss(self.model(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(
            [
                {"params": self.model[0].parameters(), "name": "first"},
                {"params": self.model[2].parameters(), "lr": 0.02, "name": "last"},
            ],
            lr=0.01,
        )
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=4)
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.95)
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, decay], milestones=[4])
        return [optimizer], [{"scheduler": scheduler, "interval": "step", "name": "lr"}]


def main(max_epochs=4, **trainer_options):
    L.seed_everything(21)
    generator = torch.Generator().manual_seed(22)
    x = torch.randn(50, 6, generator=generator)
    data = TensorDataset(x, x[:, :1] * x[:, 1:2])
    timer = Timer(duration=timedelta(hours=1), interval="step")
    callbacks = [
        LearningRateMonitor(logging_interval="step", log_momentum=True, log_weight_decay=True),
        DeviceStatsMonitor(cpu_stats=True),
        GradientAccumulationScheduler(scheduling={0: 1, 1: 2, 3: 5}),
        EarlyStopping("loss", patience=2, check_on_train_epoch_end=True, check_finite=True),
        ModelCheckpoint(monitor="val/loss", save_top_k=2, save_last="link", every_n_epochs=1),
        timer,
    ]
    trainer = L.Trainer(
        max_epochs=max_epochs,
        callbacks=callbacks,
        logger=[TensorBoardLogger("logs", version="tb"), CSVLogger("logs", version="csv")],
        log_every_n_steps=2,
        max_time="00:01:00:00",
        **trainer_options,
    )
    model = TwoSchedules()
    trainer.fit(model, DataLoader(data, batch_size=5), DataLoader(data, batch_size=25))
    assert timer.time_elapsed("train") > 0
    assert callbacks[0].lrs
    return trainer, model
