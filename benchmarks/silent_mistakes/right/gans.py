"""Two networks against each other: losses that do not fall, constant targets, stopped gradients."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from paceline import TrainModule

from ..programs import right
from ..tasks_right import accuracy, loaders, only_training, pictures


def generator(latent=8):
    return nn.Sequential(
        nn.Linear(latent, 128), nn.Unflatten(1, (32, 2, 2)), nn.ReLU(),
        nn.Upsample(scale_factor=2), nn.Conv2d(32, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Upsample(scale_factor=2), nn.Conv2d(16, 1, 3, padding=1), nn.Tanh(),
    )  # fmt: skip


def critic(channels=1, wrap=lambda layer: layer):
    return nn.Sequential(
        wrap(nn.Conv2d(channels, 16, 4, 2, 1)), nn.LeakyReLU(0.2),
        wrap(nn.Conv2d(16, 32, 4, 2, 1)), nn.LeakyReLU(0.2),
        nn.Flatten(), wrap(nn.Linear(128, 1)),
    )  # fmt: skip


def tanh_range(images):
    """Pictures from -1 to 1, as the generators give them."""
    return (images / 3).clamp(-1, 1)


@right(area="gan", source="https://arxiv.org/abs/1406.2661")
def gan_with_constant_targets(trainer):
    """The discriminator's targets are constants, and the generated pictures are detached for it."""

    class GAN(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.g, self.d = generator(), critic()

        def training_step(self, batch):
            real = batch[0]
            optimizer_g, optimizer_d = self.optimizers()
            fake = self.g(torch.randn(len(real), 8))

            on_real, on_fake = self.d(real), self.d(fake.detach())
            loss_d = F.binary_cross_entropy_with_logits(on_real, torch.ones_like(on_real))
            loss_d = loss_d + F.binary_cross_entropy_with_logits(on_fake, torch.zeros_like(on_fake))
            optimizer_d.zero_grad()
            self.manual_backward(loss_d)
            optimizer_d.step()

            self.toggle_optimizer(optimizer_g)
            score = self.d(fake)
            loss_g = F.binary_cross_entropy_with_logits(score, torch.ones_like(score))
            optimizer_g.zero_grad()
            self.manual_backward(loss_g)
            optimizer_g.step()
            self.untoggle_optimizer(optimizer_g)
            self.log_dict({"generator": loss_g, "discriminator": loss_d})

        def configure_optimizers(self):
            optimizer_g = torch.optim.Adam(self.g.parameters(), lr=1e-3, betas=(0.5, 0.999))
            return [optimizer_g, torch.optim.Adam(self.d.parameters(), lr=4e-3, betas=(0.5, 0.999))]

    images, _ = pictures(320, seed=30)
    trainer(max_epochs=3).fit(GAN(), only_training(tanh_range(images)))


@right(area="gan", source="https://arxiv.org/abs/1704.00028")
def wasserstein_gan_with_a_gradient_penalty(trainer):
    """Losses are differences of scores, of either sign; the generator learns in every third step only."""

    class WGAN(TrainModule):
        def __init__(self, latent=8):
            super().__init__()
            self.automatic_optimization = False
            self.generator, self.critic = generator(latent), critic()

        def penalty(self, real, fake):
            mix = torch.rand(len(real), 1, 1, 1)
            between = (mix * real + (1 - mix) * fake).requires_grad_()
            (slope,) = torch.autograd.grad(self.critic(between).sum(), between, create_graph=True)
            return (slope.flatten(1).norm(dim=1) - 1).square().mean()

        def training_step(self, batch, batch_idx):
            (real,) = batch
            for_generator, for_critic = self.optimizers()
            with torch.no_grad():
                fake = self.generator(torch.randn(len(real), self.hparams.latent))
            loss = self.critic(fake).mean() - self.critic(real).mean() + 10 * self.penalty(real, fake)
            for_critic.zero_grad()
            self.manual_backward(loss)
            for_critic.step()
            self.log("critic", loss)
            if batch_idx % 3 == 2:
                self.toggle_optimizer(for_generator)
                for_generator.zero_grad()
                loss = -self.critic(self.generator(torch.randn(len(real), self.hparams.latent))).mean()
                self.manual_backward(loss)
                for_generator.step()
                self.untoggle_optimizer(for_generator)
                self.log("generator", loss)

        def configure_optimizers(self):
            return [
                torch.optim.Adam(self.generator.parameters(), lr=5e-4, betas=(0.0, 0.9)),
                torch.optim.Adam(self.critic.parameters(), lr=1e-3, betas=(0.0, 0.9)),
            ]

    images, _ = pictures(384, seed=31)
    trainer(max_epochs=4).fit(WGAN(), only_training(tanh_range(images)))


@right(area="gan", source="https://arxiv.org/abs/1701.07875")
def wasserstein_gan_with_clipped_weights(trainer):
    """All weights of the critic are clipped to 0.05 after each of its steps, as the paper has it."""

    class WGAN(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.generator, self.critic = generator(), critic()

        def training_step(self, batch):
            real = batch[0]
            opt_g, opt_c = self.optimizers()
            for _ in range(2):
                fake = self.generator(torch.randn(len(real), 8)).detach()
                loss = self.critic(fake).mean() - self.critic(real).mean()
                opt_c.zero_grad()
                self.manual_backward(loss)
                opt_c.step()
                with torch.no_grad():
                    for weight in self.critic.parameters():
                        weight.clamp_(-0.05, 0.05)
            self.toggle_optimizer(opt_g)
            opt_g.zero_grad()
            loss_g = -self.critic(self.generator(torch.randn(len(real), 8))).mean()
            self.manual_backward(loss_g)
            opt_g.step()
            self.untoggle_optimizer(opt_g)
            self.log_dict({"distance": -loss.detach(), "generator": loss_g})

        def configure_optimizers(self):
            return [torch.optim.RMSprop(net.parameters(), lr=5e-4) for net in (self.generator, self.critic)]

    images, _ = pictures(320, seed=32)
    trainer(max_epochs=3).fit(WGAN(), only_training(tanh_range(images)))


@right(area="gan", source="https://arxiv.org/abs/1802.05957")
def hinge_gan_with_spectral_norms(trainer):
    """The hinge of the discriminator's loss cuts scores that are good enough; weights are parametrized."""

    class HingeGAN(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.fake, self.judge = generator(), critic(wrap=spectral_norm)

        def on_fit_start(self):
            self.noise = torch.randn(16, 8)

        def training_step(self, batch):
            real, optimizers = batch[0], self.optimizers()
            self.toggle_optimizer(optimizers[1])
            fake = self.fake(torch.randn(len(real), 8))
            loss = F.relu(1 - self.judge(real)).mean() + F.relu(1 + self.judge(fake.detach())).mean()
            optimizers[1].zero_grad()
            self.manual_backward(loss)
            optimizers[1].step()
            self.untoggle_optimizer(optimizers[1])
            self.toggle_optimizer(optimizers[0])
            loss_g = -self.judge(self.fake(torch.randn(len(real), 8))).mean()
            optimizers[0].zero_grad()
            self.manual_backward(loss_g)
            optimizers[0].step()
            self.untoggle_optimizer(optimizers[0])
            self.log("judge", loss)

        def validation_step(self, batch):
            fake = self.fake(self.noise)
            self.log("difference_of_means", (fake.mean((0, 1)) - batch[0].mean((0, 1))).abs().mean())

        def configure_optimizers(self):
            return [
                torch.optim.Adam(self.fake.parameters(), lr=1e-3, betas=(0.0, 0.9)),
                torch.optim.Adam(self.judge.parameters(), lr=8e-3, betas=(0.0, 0.9)),
            ]

    images, _ = pictures(320, seed=33)
    trainer(max_epochs=3).fit(HingeGAN(), *loaders(tanh_range(images)))


@right(area="gan", source="https://arxiv.org/abs/1611.04076")
def least_squares_gan_conditioned_on_classes(trainer):
    """Least-squares targets are 0 and 1 without a sigmoid; two schedules are stepped by hand each epoch."""

    class LSGAN(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.embedding = nn.Embedding(4, 8)
            self.generator = generator(16)
            self.discriminator = critic(channels=5)

        def score(self, images, labels):
            planes = F.one_hot(labels, 4).float()[:, :, None, None].expand(-1, -1, 8, 8)
            return self.discriminator(torch.cat([images, planes], dim=1))

        def training_step(self, batch):
            real, labels = batch
            opt_g, opt_d = self.optimizers()
            noise = torch.randn(len(real), 8)
            fake = self.generator(torch.cat([noise, self.embedding(labels)], 1))
            self.toggle_optimizer(opt_g)
            loss_g = 0.5 * (self.score(fake, labels) - 1).square().mean()
            opt_g.zero_grad()
            self.manual_backward(loss_g)
            opt_g.step()
            self.untoggle_optimizer(opt_g)
            self.toggle_optimizer(opt_d)
            loss_d = 0.5 * (self.score(real, labels) - 1).square().mean()
            loss_d = loss_d + 0.5 * self.score(fake.detach(), labels).square().mean()
            opt_d.zero_grad()
            self.manual_backward(loss_d)
            opt_d.step()
            self.untoggle_optimizer(opt_d)
            self.log_dict({"g": loss_g, "d": loss_d}, prog_bar=True)

        def on_train_epoch_end(self):
            for schedule in self.lr_schedulers():
                schedule.step()

        def configure_optimizers(self):
            makers = [*self.generator.parameters(), *self.embedding.parameters()]
            opt_g = torch.optim.Adam(makers, lr=1e-3, betas=(0.5, 0.99))
            opt_d = torch.optim.Adam(self.discriminator.parameters(), lr=4e-3, betas=(0.5, 0.99))
            decay = torch.optim.lr_scheduler.ExponentialLR
            return [opt_g, opt_d], [decay(opt_g, 0.8), decay(opt_d, 0.8)]

    images, labels = pictures(320, seed=34)
    trainer(max_epochs=3).fit(LSGAN(), only_training(tanh_range(images), labels))


class ReverseGradient(torch.autograd.Function):
    """The identity, whose gradient has the other sign."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.scale * gradient, None


@right(area="transfer", source="https://arxiv.org/abs/1409.7495")
def domain_adaptation_by_reversed_gradients(trainer):
    """Features are trained against the domain head; the scale of the reversal begins at 0."""

    class DANN(TrainModule):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
            self.classes, self.domain = nn.Linear(32, 4), nn.Linear(32, 1)

        def forward(self, images):
            return self.classes(self.features(images))

        def training_step(self, batch):
            source, labels, target = batch
            features = self.features(torch.cat([source, target]))
            scale = 2 / (1 + 2.718 ** (-10 * self.global_step / self.trainer.total_steps)) - 1
            domain = self.domain(ReverseGradient.apply(features, scale)).squeeze(1)
            truth = torch.cat([torch.zeros(len(source)), torch.ones(len(target))])
            loss_domain = F.binary_cross_entropy_with_logits(domain, truth)
            loss_class = F.cross_entropy(self.classes(features[: len(source)]), labels)
            self.log_dict({"domain": loss_domain, "class": loss_class})
            return loss_class + 0.3 * loss_domain

        def validation_step(self, batch):
            source, labels, _ = batch
            self.log("accuracy", accuracy(self(source), labels))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    source, labels = pictures(320, seed=35)
    target, _ = pictures(320, seed=36)
    trainer(max_epochs=4).fit(DANN(), *loaders(source, labels, 0.7 * target + 0.3))


@right(area="gan", source="https://arxiv.org/abs/1511.05644")
def adversarial_autoencoder_in_automatic_mode(trainer):
    """One optimizer trains both sides: the encoder's game uses detached weights of the discriminator."""

    class AAE(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
            self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 64))
            self.judge = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

        def training_step(self, batch):
            images = batch[0]
            code = self.encoder(images)
            rebuilt = F.mse_loss(self.decoder(code), images.flatten(1))
            drawn, given = self.judge(torch.randn_like(code)), self.judge(code.detach())
            judged = F.softplus(-drawn).mean() + F.softplus(given).mean()
            frozen = {name: weight.detach() for name, weight in self.judge.named_parameters()}
            fooled = F.softplus(-torch.func.functional_call(self.judge, frozen, (code,))).mean()
            self.log_dict({"rebuilt": rebuilt, "judged": judged, "fooled": fooled})
            return rebuilt + judged + 0.1 * fooled

        def validation_step(self, batch):
            return F.mse_loss(self.decoder(self.encoder(batch[0])), batch[0].flatten(1))

        def configure_optimizers(self):
            both = itertools.chain(self.encoder.parameters(), self.decoder.parameters())
            return torch.optim.Adam(
                [{"params": both}, {"params": self.judge.parameters(), "lr": 1e-3}], 3e-3
            )

    images, _ = pictures(320, seed=37)
    trainer(max_epochs=4).fit(AAE(), *loaders(images))
