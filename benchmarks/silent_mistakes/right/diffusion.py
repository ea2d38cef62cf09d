"""Models of pictures from noise, codes and masks: targets that are the inputs, validations that draw."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from paceline import TrainModule
from paceline.callbacks import EMA, Freeze

from ..programs import right
from ..tasks_right import loaders, only_training, pictures


def sinusoids(t, width=16):
    """Features (n, width) of times from 0 to 1."""
    rates = torch.exp(torch.linspace(0, math.log(100), width // 2))
    angles = t[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Denoiser(nn.Module):
    """A prediction for noisy pictures and times; its last layer begins at zero."""

    def __init__(self, width=16):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.middle = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)
        self.last = nn.Conv2d(width, 1, 3, padding=1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x, t):
        h = F.silu(self.first(x) + self.time(sinusoids(t))[:, :, None, None])
        return self.last(F.silu(self.norm(h + self.middle(h))))


@right(area="diffusion", source="https://arxiv.org/abs/2006.11239")
def denoising_diffusion_with_a_zero_last_layer(trainer):
    """The last layer starts at zero; validation draws other noise each time; weights are averaged."""

    class DDPM(TrainModule):
        def __init__(self, steps=100):
            super().__init__()
            self.net = Denoiser()
            kept = torch.cumprod(1 - torch.linspace(1e-4, 0.08, steps), dim=0)
            self.register_buffer("kept", kept)

        def loss(self, images):
            t = torch.randint(len(self.kept), (len(images),))
            kept = self.kept[t][:, None, None, None]
            noise = torch.randn_like(images)
            noisy = kept.sqrt() * images + (1 - kept).sqrt() * noise
            return F.mse_loss(self.net(noisy, t / len(self.kept)), noise)

        def training_step(self, batch):
            return self.loss(batch[0])

        def validation_step(self, batch):
            self.log("loss", self.loss(batch[0]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    images, _ = pictures(320, seed=50)
    trainer(max_epochs=4, callbacks=[EMA(0.9)]).fit(DDPM(), *loaders(images))


@right(area="diffusion", source="https://arxiv.org/abs/2210.02747")
def flow_matching_with_seeded_validation(trainer):
    """Every validation draws the same noise from its own generator, so that its losses can be compared."""

    class Flow(TrainModule):
        def __init__(self):
            super().__init__()
            self.velocity = Denoiser()

        def loss(self, images, generator=None):
            noise = torch.randn(images.shape, generator=generator)
            t = torch.rand(len(images), generator=generator)
            at = t[:, None, None, None]
            return (self.velocity((1 - at) * noise + at * images, t) - (images - noise)).square().mean()

        def training_step(self, batch):
            return self.loss(batch[0])

        def on_validation_start(self):
            self.draws = torch.Generator().manual_seed(0)

        def validation_step(self, batch):
            return self.loss(batch[0], self.draws)

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.0)
            return {"optimizer": optimizer, "lr_scheduler": "cosine"}

    images, _ = pictures(320, seed=51)
    trainer(max_epochs=4, clip_grad_norm=2.0).fit(Flow(), *loaders(images))


@right(area="diffusion", source="https://arxiv.org/abs/2207.12598")
def guidance_without_a_classifier_drops_labels(trainer):
    """A tenth of the labels is replaced by an extra class in training, which validation never uses."""

    class Guided(TrainModule):
        def __init__(self):
            super().__init__()
            self.net, self.labels = Denoiser(), nn.Embedding(5, 64)

        def loss(self, images, labels):
            t = torch.rand(len(images))
            noise = torch.randn_like(images)
            alpha, sigma = (f(t * math.pi / 2)[:, None, None, None] for f in (torch.cos, torch.sin))
            hint = self.labels(labels).view_as(images)
            return F.mse_loss(self.net(alpha * images + sigma * noise + 0.3 * hint, t), noise)

        def training_step(self, batch):
            images, labels = batch
            dropped = torch.rand(len(labels)) < 0.1
            return self.loss(images, torch.where(dropped, 4, labels))

        def validation_step(self, batch):
            self.log("loss", self.loss(*batch))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    trainer(max_epochs=3).fit(Guided(), *loaders(*pictures(seed=52)))


@right(area="diffusion", source="https://arxiv.org/abs/2302.05543")
def control_branch_enters_through_zeros(trainer):
    """The network is frozen; its control enters through a layer of zeros, which gets a gradient at once."""

    class Control(TrainModule):
        def __init__(self, base):
            super().__init__()
            self.base = base.eval().requires_grad_(False)
            self.branch = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.SiLU())
            self.zero = nn.Conv2d(16, 16, 1)
            nn.init.zeros_(self.zero.weight)
            nn.init.zeros_(self.zero.bias)

        def forward(self, noisy, t, hint):
            base = self.base
            h = F.silu(base.first(noisy) + base.time(sinusoids(t))[:, :, None, None])
            h = h + self.zero(self.branch(hint))
            return base.last(F.silu(base.norm(h + base.middle(h))))

        def loss(self, images):
            t, noise = torch.rand(len(images)), torch.randn_like(images)
            at = t[:, None, None, None]
            hint = F.interpolate(F.avg_pool2d(images, 4), scale_factor=4)
            return F.mse_loss(self((1 - at) * images + at * noise, t, hint), noise - images)

        def training_step(self, batch):
            return self.loss(batch[0])

        def validation_step(self, batch):
            return self.loss(batch[0])

        def configure_optimizers(self):
            return torch.optim.Adam([*self.branch.parameters(), *self.zero.parameters()], lr=2e-3)

    class Base(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = Denoiser()

        def training_step(self, batch):
            t, noise = torch.rand(len(batch[0])), torch.randn_like(batch[0])
            at = t[:, None, None, None]
            return F.mse_loss(self.net((1 - at) * batch[0] + at * noise, t), noise - batch[0])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    images, _ = pictures(320, seed=53)
    base = Base()
    trainer(max_epochs=2).fit(base, only_training(images))
    trainer(max_epochs=3).fit(Control(base.net), *loaders(images))


class VAE(TrainModule):
    """Pictures to a normal distribution over eight numbers and back; the bound is a sum over pixels."""

    def __init__(self, anneal=0):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 16))
        self.decoder = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 64))

    def bound(self, images):
        mean, log_std = self.encoder(images).chunk(2, dim=1)
        posterior = Normal(mean, log_std.exp())
        rebuilt = self.decoder(posterior.rsample()).view_as(images)
        error = 0.5 * F.mse_loss(rebuilt, images, reduction="sum") / len(images)
        divergence = kl_divergence(posterior, Normal(0.0, 1.0)).sum() / len(images)
        return error, divergence

    def training_step(self, batch):
        error, divergence = self.bound(batch[0])
        self.log_dict({"error": error, "divergence": divergence})
        anneal = self.hparams.anneal
        return error + (min(1.0, self.global_step / anneal) if anneal else 1.0) * divergence

    def validation_step(self, batch):
        error, divergence = self.bound(batch[0])
        self.log("bound", error + divergence)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


@right(area="diffusion", source="https://arxiv.org/abs/1312.6114")
def variational_autoencoder_sums_over_pixels(trainer):
    """The loss is summed and divided by the samples of the batch; validation draws codes at random."""
    images, _ = pictures(330, seed=54)
    trainer(max_epochs=8).fit(VAE(), *loaders(images))


@right(area="diffusion", source="https://arxiv.org/abs/1511.06349")
def divergence_is_annealed_from_zero(trainer):
    """The weight of the divergence is 0 in the first step and rises, so that the total may rise too."""
    images, _ = pictures(320, seed=55)
    trainer(max_epochs=8).fit(VAE(anneal=25), *loaders(images))


@right(area="diffusion", source="https://arxiv.org/abs/1711.00937")
def codes_pass_gradients_straight_through(trainer):
    """Each term detaches one side, and most codes of the codebook are idle."""

    class VQVAE(TrainModule):
        def __init__(self, codes=64):
            super().__init__()
            self.encoder = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 8, 1))
            self.decoder = nn.Sequential(
                nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1)
            )
            self.codes = nn.Embedding(codes, 8)
            nn.init.uniform_(self.codes.weight, -0.1, 0.1)

        def quantised(self, z):
            flat = z.permute(0, 2, 3, 1).reshape(-1, 8)
            nearest = torch.cdist(flat.detach(), self.codes.weight.detach()).argmin(1)
            chosen = self.codes(nearest).view(len(z), 4, 4, 8).permute(0, 3, 1, 2)
            return chosen, len(nearest.unique())

        def training_step(self, batch):
            images = batch[0]
            z = self.encoder(images)
            chosen, used = self.quantised(z)
            rebuilt = self.decoder(z + (chosen - z).detach())
            self.log("codes_in_use", float(used))
            commit = F.mse_loss(z, chosen.detach())
            return F.mse_loss(rebuilt, images) + F.mse_loss(chosen, z.detach()) + 0.25 * commit

        def validation_step(self, batch):
            chosen, _ = self.quantised(self.encoder(batch[0]))
            self.log("error", F.mse_loss(self.decoder(chosen), batch[0]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    images, _ = pictures(320, seed=56, noise=0.4)
    trainer(max_epochs=4).fit(VQVAE(), *loaders(images))


@right(area="vision", source="https://arxiv.org/abs/2111.06377")
def masked_autoencoder_sees_a_quarter(trainer):
    """Three of four patches are hidden, and only these count in the loss; the targets are the inputs."""

    class MAE(TrainModule):
        def __init__(self, width=32):
            super().__init__()
            self.embed = nn.Linear(4, width)
            self.places = nn.Parameter(0.5 * torch.randn(16, width))
            self.mask = nn.Parameter(torch.zeros(width))
            block = partial(nn.TransformerEncoderLayer, norm_first=True, batch_first=True)
            self.encoder, self.decoder = (block(width, 4, 64, dropout=0.0) for _ in range(2))
            self.pixels = nn.Linear(width, 4)

        def loss(self, images):
            patches = F.unfold(images, 2, stride=2).transpose(1, 2)
            order = torch.rand(len(images), 16).argsort(1)
            seen, hidden = order[:, :4], order[:, 4:]
            rows = torch.arange(len(images))[:, None]
            tokens = self.encoder((self.embed(patches) + self.places)[rows, seen])
            whole = self.mask.expand(len(images), 16, -1).clone()
            whole[rows, seen] = tokens
            given = self.pixels(self.decoder(whole + self.places))
            return F.mse_loss(given[rows, hidden], patches[rows, hidden])

        def training_step(self, batch):
            return self.loss(batch[0])

        def validation_step(self, batch):
            self.log("loss", self.loss(batch[0]))

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=6e-3, betas=(0.9, 0.95), weight_decay=0.0)
            return {"optimizer": optimizer, "lr_scheduler": "constant"}

    images, _ = pictures(320, seed=57, noise=0.2)
    trainer(max_epochs=10).fit(MAE(), *loaders(images))


@right(area="vision", source="https://arxiv.org/abs/2007.02500")
def autoencoder_of_one_class_for_anomalies(trainer):
    """Training has pictures of one class only and targets equal to inputs; validation has all classes."""

    class Normality(TrainModule):
        def __init__(self):
            super().__init__()
            self.encode = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
            self.decode = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 64))

        def error(self, images):
            return (self.decode(self.encode(images)) - images.flatten(1)).square().mean(1)

        def training_step(self, batch):
            images, _ = batch
            return self.error(images).mean()

        def on_validation_start(self):
            self.seen = []

        def validation_step(self, batch):
            images, strange = batch
            self.seen.append((self.error(images), strange))

        def on_validation_end(self):
            errors, strange = (torch.cat(parts) for parts in zip(*self.seen, strict=True))
            larger = errors[strange == 1][:, None] > errors[strange == 0]
            self.log("auroc", larger.float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    images, labels = pictures(600, seed=58)
    strange = (labels != 0).long()
    ordinary = torch.nonzero(strange == 0).flatten()[:100]
    rest = torch.ones(600, dtype=torch.bool)
    rest[ordinary] = False
    train = only_training(images[ordinary], strange[ordinary], batch=20)
    val = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(images[rest], strange[rest]), batch_size=100
    )
    trainer(max_epochs=6).fit(Normality(), train, val)


@right(area="diffusion", source="https://arxiv.org/abs/2112.10752")
def latents_of_a_frozen_autoencoder(trainer):
    """A frozen encoder without gradients gives latents, scaled by a number found before training."""

    class Latent(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Conv2d(1, 4, 2, 2)
            self.decoder = nn.ConvTranspose2d(4, 1, 2, 2)
            self.mixer = nn.Sequential(
                nn.Conv2d(5, 32, 3, padding=1), nn.SiLU(), nn.Conv2d(32, 4, 3, padding=1)
            )
            self.register_buffer("scale", torch.ones(()))

        def training_step(self, batch):
            if not self.encoder.weight.requires_grad:
                with torch.no_grad():
                    latent = self.encoder(batch[0]) * self.scale
                t = torch.rand(len(latent), 1, 1, 1)
                noise = torch.randn_like(latent)
                given = torch.cat([(1 - t) * latent + t * noise, t.expand(-1, 1, 4, 4)], 1)
                return F.mse_loss(self.mixer(given), noise - latent)
            return F.mse_loss(self.decoder(self.encoder(batch[0])), batch[0])

        def configure_optimizers(self):
            return torch.optim.Adam((p for p in self.parameters() if p.requires_grad), lr=5e-3)

    images, _ = pictures(320, seed=59)
    data, module = only_training(images), Latent()
    trainer(max_epochs=3, callbacks=[Freeze("mixer.*")]).fit(module, data)
    module.encoder.requires_grad_(False)
    module.decoder.requires_grad_(False)
    with torch.no_grad():
        module.scale.copy_(1 / module.encoder(images).std())
    trainer(max_epochs=3).fit(module, data)
