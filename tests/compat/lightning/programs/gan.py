"""A GAN under manual optimization: two optimizers, toggled in turn, which step in one training_step."""

from argparse import ArgumentParser

import lightning.pytorch as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset


def images_with_noise(size: int = 48, latent_dim: int = 8):
    """Small images, each with the noise to make another of: nothing is drawn while training."""
    generator = torch.Generator().manual_seed(3)
    stripes = torch.sin(torch.arange(6.0) + 3 * torch.rand(size, 1, generator=generator))
    images = stripes[:, None, None, :].expand(size, 1, 6, 6).clone()
    return TensorDataset(images, torch.randn(size, latent_dim, generator=generator))


class Generator(nn.Module):
    def __init__(self, latent_dim: int, img_shape: tuple):
        super().__init__()
        self.img_shape = img_shape
        self.model = nn.Sequential(
            nn.Linear(latent_dim, 32),
            nn.BatchNorm1d(32, 0.8),
            nn.LeakyReLU(0.2),
            nn.Linear(32, 36),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.model(z).view(z.size(0), *self.img_shape)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(36, 32), nn.LeakyReLU(0.2, inplace=True), nn.Linear(32, 1), nn.Sigmoid()
        )

    def forward(self, img):
        return self.model(img.view(img.size(0), -1))


class GAN(pl.LightningModule):
    def __init__(
        self, latent_dim: int = 8, lr: float = 0.0002, b1: float = 0.5, b2: float = 0.999, **kwargs
    ):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = Generator(latent_dim=self.hparams.latent_dim, img_shape=(1, 6, 6))
        self.discriminator = Discriminator()
        self.register_buffer("validation_z", torch.linspace(-1, 1, 4 * latent_dim).view(4, latent_dim))

    def forward(self, z):
        return self.generator(z)

    def adversarial_loss(self, y_hat, y):
        return F.binary_cross_entropy(y_hat, y)

    def training_step(self, batch, batch_idx):
        imgs, z = batch
        z = z.type_as(imgs)
        optimizer_g, optimizer_d = self.optimizers()

        # train generator
        self.toggle_optimizer(optimizer_g)
        self.generated_imgs = self(z)
        valid = torch.ones(imgs.size(0), 1).type_as(imgs)
        g_loss = self.adversarial_loss(self.discriminator(self(z)), valid)
        self.log("g_loss", g_loss, prog_bar=True)
        self.manual_backward(g_loss)
        optimizer_g.step()
        optimizer_g.zero_grad()
        self.untoggle_optimizer(optimizer_g)

        # train discriminator
        self.toggle_optimizer(optimizer_d)
        real_loss = self.adversarial_loss(self.discriminator(imgs), valid)
        fake = torch.zeros(imgs.size(0), 1).type_as(imgs)
        fake_loss = self.adversarial_loss(self.discriminator(self(z).detach()), fake)
        d_loss = (real_loss + fake_loss) / 2
        self.log("d_loss", d_loss, prog_bar=True)
        self.manual_backward(d_loss)
        optimizer_d.step()
        optimizer_d.zero_grad()
        self.untoggle_optimizer(optimizer_d)

    def configure_optimizers(self):
        lr, betas = self.hparams.lr, (self.hparams.b1, self.hparams.b2)
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=lr, betas=betas)
        opt_d = torch.optim.Adam(self.discriminator.parameters(), lr=lr, betas=betas)
        return [opt_g, opt_d], []

    def on_train_epoch_end(self):
        sample_imgs = self(self.validation_z)
        self.log("sample_mean", sample_imgs.mean())
        self.log("epoch_seen", float(self.current_epoch))


def main(max_epochs=2, **trainer_options):
    parser = ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--latent_dim", type=int, default=8)
    args = parser.parse_args([])

    pl.seed_everything(1234)
    model = GAN(**vars(args), name="gan")
    logger = CSVLogger("logs", name="gan")
    trainer = pl.Trainer(max_epochs=max_epochs, logger=logger, log_every_n_steps=2, **trainer_options)
    trainer.fit(model, DataLoader(images_with_noise(), batch_size=8))
    return trainer, model
