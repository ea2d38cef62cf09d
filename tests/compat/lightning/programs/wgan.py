"""A WGAN with gradient penalty: two optimizers, each with a schedule, pictures logged, resumed once."""

import copy
import math
import os
from argparse import ArgumentParser, Namespace

import lightning.pytorch as pl
import torch
import torch.nn as nn
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, Timer
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader, TensorDataset, random_split


class BlobsDataModule(pl.LightningDataModule):
    """Gray pictures of a blob in a random place."""

    def __init__(self, num_samples: int = 72, image_size: int = 8, batch_size: int = 8):
        super().__init__()
        self.num_samples = num_samples
        self.image_size = image_size
        self.batch_size = batch_size
        self.dims = (1, image_size, image_size)

    def setup(self, stage: str | None = None):
        generator = torch.Generator().manual_seed(17)
        centers = torch.rand(self.num_samples, 2, 1, 1, generator=generator) * 0.6 + 0.2
        axis = torch.linspace(0, 1, self.image_size)
        distance = (axis[None, :, None] - centers[:, 0]) ** 2 + (axis[None, None] - centers[:, 1]) ** 2
        images = 2 * torch.exp(-distance / 0.05)[:, None] - 1
        self.train_set, self.val_set = random_split(
            TensorDataset(images), [self.num_samples - 16, 16], generator=torch.Generator().manual_seed(1)
        )

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.batch_size, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=self.batch_size)


def weights_init(module):
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.05)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


class Generator(nn.Module):
    def __init__(self, latent_dim, channels, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.ConvTranspose2d(latent_dim, 2 * width, 4, 1, 0, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(True),
            nn.ConvTranspose2d(2 * width, channels, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(z[:, :, None, None])


class Critic(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(channels, width, 4, 2, 1),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width, 2 * width, 3, 1, 1),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Flatten(),
            nn.Linear(2 * width * 16, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


class WGANGP(pl.LightningModule):
    def __init__(self, args: Namespace):
        super().__init__()
        self.save_hyperparameters(args)
        self.automatic_optimization = False
        self.generator = Generator(self.hparams.latent_dim, 1, self.hparams.width).apply(weights_init)
        self.critic = Critic(1, self.hparams.width).apply(weights_init)
        self.generator_ema = copy.deepcopy(self.generator).requires_grad_(False)
        # noise that does not depend on anything else that draws random numbers
        self.noise = torch.Generator().manual_seed(self.hparams.noise_seed)
        fixed = torch.randn(16, self.hparams.latent_dim, generator=torch.Generator().manual_seed(0))
        self.register_buffer("fixed_z", fixed)
        self.fakes, self.reals = [], []

    def forward(self, z):
        return self.generator_ema(z)

    def sample_z(self, n):
        return torch.randn(n, self.hparams.latent_dim, generator=self.noise).to(self.device)

    def gradient_penalty(self, real, fake):
        alpha = torch.rand(real.size(0), 1, 1, 1, generator=self.noise).to(self.device)
        interpolates = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
        scores = self.critic(interpolates)
        gradients = torch.autograd.grad(
            outputs=scores,
            inputs=interpolates,
            grad_outputs=torch.ones_like(scores),
            create_graph=True,
            retain_graph=True,
        )[0]
        return ((gradients.flatten(1).norm(2, dim=1) - 1) ** 2).mean()

    def training_step(self, batch, batch_idx):
        (real,) = batch
        opt_g, opt_c = self.optimizers()

        self.toggle_optimizer(opt_c)
        fake = self.generator(self.sample_z(real.size(0))).detach()
        gp = self.gradient_penalty(real, fake)
        wasserstein = self.critic(real).mean() - self.critic(fake).mean()
        c_loss = -wasserstein + self.hparams.lambda_gp * gp
        opt_c.zero_grad()
        self.manual_backward(c_loss)
        self.clip_gradients(opt_c, gradient_clip_val=5.0, gradient_clip_algorithm="norm")
        opt_c.step()
        self.untoggle_optimizer(opt_c)
        self.log_dict({"c_loss": c_loss, "gp": gp, "wasserstein": wasserstein}, prog_bar=True)

        if (batch_idx + 1) % self.hparams.n_critic == 0:
            self.toggle_optimizer(opt_g)
            g_loss = -self.critic(self.generator(self.sample_z(real.size(0)))).mean()
            opt_g.zero_grad()
            self.manual_backward(g_loss)
            opt_g.step()
            self.untoggle_optimizer(opt_g)
            self.log("g_loss", g_loss, prog_bar=True)

        sch_g, _ = self.lr_schedulers()
        sch_g.step()  # a cosine over steps; the critic's goes down after each epoch

    @torch.no_grad()
    def on_train_batch_end(self, outputs, batch, batch_idx):
        decay = self.hparams.ema_decay
        for ema, live in zip(self.generator_ema.parameters(), self.generator.parameters(), strict=True):
            ema.lerp_(live, 1 - decay)
        for ema, live in zip(self.generator_ema.buffers(), self.generator.buffers(), strict=True):
            ema.copy_(live)

    def on_train_epoch_end(self):
        _, sch_c = self.lr_schedulers()
        sch_c.step()
        opt_g, opt_c = self.optimizers()
        self.log("lr_g", opt_g.param_groups[0]["lr"])
        self.log("lr_c", opt_c.optimizer.param_groups[0]["lr"])

    def validation_step(self, batch, batch_idx):
        self.reals.append(batch[0])
        z = self.fixed_z[: batch[0].size(0)].roll(batch_idx, 0)
        self.fakes.append(self(z))
        self.log("val_wasserstein", self.critic(batch[0]).mean() - self.critic(self.fakes[-1]).mean())

    def on_validation_epoch_end(self):
        real, fake = torch.cat(self.reals), torch.cat(self.fakes)
        distance = (real.mean(0) - fake.mean(0)).pow(2).mean() + (real.std(0) - fake.std(0)).pow(2).mean()
        self.log("val_moments", distance, prog_bar=True)
        self.reals.clear()
        self.fakes.clear()

    def configure_optimizers(self):
        betas = (self.hparams.b1, self.hparams.b2)
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=self.hparams.lr_g, betas=betas)
        opt_c = torch.optim.Adam(self.critic.parameters(), lr=self.hparams.lr_c, betas=betas)
        sch_g = torch.optim.lr_scheduler.CosineAnnealingLR(opt_g, T_max=self.hparams.decay_steps)
        sch_c = torch.optim.lr_scheduler.ExponentialLR(opt_c, gamma=0.9)
        return [opt_g, opt_c], [sch_g, {"scheduler": sch_c, "interval": "epoch", "name": "critic"}]

    def on_save_checkpoint(self, checkpoint):
        checkpoint["noise_state"] = self.noise.get_state()

    def on_load_checkpoint(self, checkpoint):
        self.noise.set_state(checkpoint["noise_state"])


def make_grid(images, nrow=4, pad=1):
    """Like torchvision's: rows of pictures with a border."""
    n, c, h, w = images.shape
    rows = math.ceil(n / nrow)
    grid = images.new_zeros(c, rows * (h + pad) + pad, nrow * (w + pad) + pad)
    for i, image in enumerate(images):
        top, left = (i // nrow) * (h + pad) + pad, (i % nrow) * (w + pad) + pad
        grid[:, top : top + h, left : left + w] = image
    return grid


class LogSamples(Callback):
    def __init__(self, every_n_epochs: int = 1):
        super().__init__()
        self.every_n_epochs = every_n_epochs

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch % self.every_n_epochs:
            return
        pl_module.eval()
        with torch.no_grad():
            images = pl_module(pl_module.fixed_z)
        pl_module.train()
        tensorboard = trainer.logger.experiment
        tensorboard.add_image("samples", (make_grid(images) + 1) / 2, global_step=trainer.current_epoch)
        tensorboard.add_histogram("pixels", images.flatten(), trainer.current_epoch)


def build_trainer(args, max_epochs, **trainer_options):
    checkpoint = ModelCheckpoint(
        dirpath=os.path.join(args.save_dir, "checkpoints"),
        filename="{epoch:02d}-{val_moments:.4f}",
        monitor="val_moments",
        save_top_k=1,
        save_last=True,
    )
    logger = TensorBoardLogger(args.save_dir, name="wgan", version="run", sub_dir=f"until_{max_epochs}")
    return pl.Trainer(
        max_epochs=max_epochs,
        callbacks=[checkpoint, LogSamples(), Timer(duration="00:00:05:00")],
        logger=logger,
        log_every_n_steps=1,
        **trainer_options,
    )


def main(max_epochs=3, **trainer_options):
    parser = ArgumentParser()
    parser.add_argument("--latent_dim", type=int, default=6)
    parser.add_argument("--width", type=int, default=6)
    parser.add_argument("--lr_g", type=float, default=2e-3)
    parser.add_argument("--lr_c", type=float, default=4e-3)
    parser.add_argument("--b1", type=float, default=0.0)
    parser.add_argument("--b2", type=float, default=0.9)
    parser.add_argument("--n_critic", type=int, default=3)
    parser.add_argument("--lambda_gp", type=float, default=10.0)
    parser.add_argument("--ema_decay", type=float, default=0.9)
    parser.add_argument("--decay_steps", type=int, default=60)
    parser.add_argument("--noise_seed", type=int, default=5)
    parser.add_argument("--save_dir", type=str, default="gan_runs")
    args = parser.parse_args([])

    pl.seed_everything(args.noise_seed)
    datamodule = BlobsDataModule()
    trainer = build_trainer(args, max_epochs, **trainer_options)
    trainer.fit(WGANGP(args), datamodule)
    steps = trainer.global_step

    last = trainer.checkpoint_callback.last_model_path
    model = WGANGP(args)
    trainer = build_trainer(args, max_epochs + 2, **trainer_options)
    trainer.fit(model, datamodule, ckpt_path=last)
    assert trainer.current_epoch == max_epochs + 2
    assert trainer.global_step == steps // max_epochs * (max_epochs + 2)

    events = EventAccumulator(trainer.logger.log_dir, size_guidance={"images": 0, "scalars": 0})
    events.Reload()
    assert [image.step for image in events.Images("samples")] == [max_epochs, max_epochs + 1]
    assert "g_loss" in events.Tags()["scalars"]

    best = WGANGP.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
    best.freeze()
    assert best(best.fixed_z).shape == (16, *datamodule.dims)
    return trainer, model


if __name__ == "__main__":
    main()
