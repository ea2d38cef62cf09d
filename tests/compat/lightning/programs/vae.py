"""A VAE with a plateau schedule, early stopping and the best checkpoint, monitored by one name."""

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

DRAWS = "the reparametrization draws noise in every training and validation step"


def make_data(n=96, dim=12):
    generator = torch.Generator().manual_seed(5)
    basis = torch.randn(3, dim, generator=generator)
    return TensorDataset(torch.sigmoid(torch.randn(n, 3, generator=generator) @ basis))


class VAE(L.LightningModule):
    def __init__(self, input_dim=12, hidden=24, latent=3, lr=1e-2, kl_weight=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(input_dim, hidden), nn.ELU())
        self.fc_mu = nn.Linear(hidden, latent)
        self.fc_var = nn.Linear(hidden, latent)
        self.decoder = nn.Sequential(
            nn.Linear(latent, hidden), nn.ELU(), nn.Linear(hidden, input_dim), nn.Sigmoid()
        )

    def reparametrize(self, mu, log_var):
        std = torch.exp(0.5 * log_var)
        return mu + std * torch.randn_like(std)

    def forward(self, x):
        hidden = self.encoder(x)
        mu, log_var = self.fc_mu(hidden), self.fc_var(hidden)
        return self.decoder(self.reparametrize(mu, log_var)), mu, log_var

    def _shared_step(self, batch):
        (x,) = batch
        x_hat, mu, log_var = self(x)
        recon = F.mse_loss(x_hat, x)
        kl = -0.5 * torch.mean(1 + log_var - mu.pow(2) - log_var.exp())
        return recon + self.hparams.kl_weight * kl, {"recon": recon, "kl": kl}

    def training_step(self, batch, batch_idx):
        loss, parts = self._shared_step(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log_dict({f"train_{name}": value for name, value in parts.items()})
        return loss

    def validation_step(self, batch, batch_idx):
        loss, parts = self._shared_step(batch)
        self.log("val_loss", loss, prog_bar=True)
        self.log_dict({f"val_{name}": value for name, value in parts.items()})

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_loss"}


def main(max_epochs=4, **trainer_options):
    L.seed_everything(42)
    train_set, val_set = random_split(make_data(), [0.75, 0.25], generator=torch.Generator().manual_seed(0))
    train_loader = DataLoader(train_set, batch_size=12)
    val_loader = DataLoader(val_set, batch_size=12)

    model = VAE(lr=2e-2)
    callbacks = [
        EarlyStopping(monitor="val_loss", patience=3, mode="min"),
        ModelCheckpoint(monitor="val_loss", mode="min", save_top_k=1, filename="vae-{epoch:02d}"),
    ]
    trainer = L.Trainer(max_epochs=max_epochs, callbacks=callbacks, log_every_n_steps=1, **trainer_options)
    trainer.fit(model, train_dataloaders=train_loader, val_dataloaders=val_loader)
    return trainer, model
