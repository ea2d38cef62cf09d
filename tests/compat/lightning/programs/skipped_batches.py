"""Steps that return None for bad batches, an epoch cut short by -1, and an end by steps alone."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class SometimesBad(Dataset):
    """Every tenth row is not finite, as measured data has them."""

    def __init__(self, size=64):
        generator = torch.Generator().manual_seed(18)
        self.x = torch.randn(size, 3, generator=generator)
        self.y = (self.x**2).sum(1, keepdim=True)
        self.x[9::20] = float("nan")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "y": self.y[index]}


class Robust(L.LightningModule):
    def __init__(self, most_batches=12):
        super().__init__()
        self.most_batches = most_batches
        self.net = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 1))
        self.skipped = 0

    def on_train_batch_start(self, batch, batch_idx):
        if batch_idx >= self.most_batches:
            return -1  # the rest of the epoch is left out
        return None

    def training_step(self, batch, batch_idx):
        loss = nn.functional.mse_loss(self.net(batch["x"]), batch["y"])
        if not torch.isfinite(loss):
            self.skipped += 1
            return None
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("skipped", float(self.skipped), on_step=True, on_epoch=False)

    def on_train_epoch_end(self):
        assert self.trainer.num_training_batches == 16

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


def main(max_epochs=-1, max_steps=25, **trainer_options):
    L.seed_everything(7)
    model = Robust()
    trainer = L.Trainer(
        max_epochs=max_epochs,
        max_steps=max_steps,
        log_every_n_steps=1,
        logger=False,
        num_sanity_val_steps=0,
        **trainer_options,
    )
    trainer.fit(model, DataLoader(SometimesBad(), batch_size=4))
    assert model.skipped > 0
    return trainer, model
