"""An exponential average of the weights by WeightAveraging: validated with, and left in the model."""

import lightning.pytorch as pl
import torch
import torch.nn as nn
from lightning.pytorch.callbacks import WeightAveraging
from torch.optim.swa_utils import get_ema_avg_fn
from torch.utils.data import DataLoader, TensorDataset


class EMAWeightAveraging(WeightAveraging):
    def __init__(self, decay=0.8, after=3):
        super().__init__(avg_fn=get_ema_avg_fn(decay))
        self.after = after

    def should_update(self, step_idx=None, epoch_idx=None):
        # Start after some steps.
        return (step_idx is not None) and (step_idx >= self.after)


class Denoiser(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 8))

    def forward(self, x):
        return self.net(x)

    def step(self, batch):
        clean, noise = batch
        return nn.functional.l1_loss(self(clean + 0.3 * noise), noise)

    def training_step(self, batch, batch_idx):
        loss = self.step(batch)
        self.log("train/loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.step(batch), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.RAdam(self.parameters(), lr=1e-2)


def main(max_epochs=3, **trainer_options):
    pl.seed_everything(11)
    generator = torch.Generator().manual_seed(12)
    train, val = (torch.randn(2, n, 8, generator=generator) for n in (35, 14))
    model = Denoiser()
    trainer = pl.Trainer(
        max_epochs=max_epochs,
        callbacks=EMAWeightAveraging(),
        accumulate_grad_batches=1,
        log_every_n_steps=1,
        enable_checkpointing=False,
        **trainer_options,
    )
    trainer.fit(model, DataLoader(TensorDataset(*train), 7), DataLoader(TensorDataset(*val), 7))
    return trainer, model
