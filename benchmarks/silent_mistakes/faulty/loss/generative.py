"""Wrong losses in diffusion, adversarial and contrastive training."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from paceline import TrainModule

from ...programs import planted
from ...tasks import loader, loaders, mlp, ring, views


@planted("broadcast-loss", area="diffusion")
def weighs_errors_by_the_time_of_every_sample(trainer):
    """Errors (N,) are multiplied by weights of the time (N, 1), so that all pairs are averaged."""

    class Denoiser(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(3, 2, hidden=48)

        def training_step(self, batch):
            (points,) = batch
            time = torch.rand(len(points), 1)
            noise = torch.randn_like(points)
            noised = (1 - time).sqrt() * points + time.sqrt() * noise
            error = (self.net(torch.cat([noised, time], 1)) - noise).square().mean(1)
            weight = (1 - time).clamp(min=0.1) / time.clamp(min=0.1)
            return (weight * error).mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    trainer(max_epochs=3).fit(Denoiser(), loader(ring(), batch=64))


@planted("negated-loss", area="gan", source="https://github.com/https-deeplearning-ai/GANs-Public/issues/1")
def turns_the_sign_of_the_critic(trainer):
    """The critic of a Wasserstein GAN minimises real minus fake: it learns to rank fakes higher."""

    class Wgan(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.generator, self.critic = mlp(4, 2, hidden=32), mlp(2, 1, hidden=32)

        def configure_optimizers(self):
            return [
                torch.optim.RMSprop(part.parameters(), lr=5e-4) for part in (self.generator, self.critic)
            ]

        def training_step(self, batch):
            (real,) = batch
            generator, critic = self.optimizers()
            fake = self.generator(torch.randn(len(real), 4))
            self.toggle_optimizer(critic)
            loss = self.critic(real).mean() - self.critic(fake.detach()).mean()
            self.log("critic", loss)
            critic.zero_grad()
            self.manual_backward(loss)
            critic.step()
            for parameter in self.critic.parameters():
                parameter.data.clamp_(-0.1, 0.1)
            self.untoggle_optimizer(critic)
            self.toggle_optimizer(generator)
            loss = -self.critic(fake).mean()
            self.log("generator", loss)
            generator.zero_grad()
            self.manual_backward(loss)
            generator.step()
            self.untoggle_optimizer(generator)

    trainer(max_epochs=3).fit(Wgan(), loader(ring(), batch=64))


@planted("softmax-twice", area="contrastive")
def normalises_similarities_before_cross_entropy(trainer):
    """Similarities go through a softmax over the batch, and then into cross_entropy."""

    class Contrastive(TrainModule):
        def __init__(self):
            super().__init__()
            self.left, self.right = mlp(12, 8, hidden=32), mlp(12, 8, hidden=32)

        def loss(self, batch):
            a, b = F.normalize(self.left(batch[0]), dim=1), F.normalize(self.right(batch[1]), dim=1)
            similarity = torch.softmax(a @ b.T / 0.1, dim=1)
            return F.cross_entropy(similarity, torch.arange(len(a)))

        def training_step(self, batch):
            return self.loss(batch)

        def validation_step(self, batch):
            return self.loss(batch)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    trainer(max_epochs=4).fit(Contrastive(), *loaders(*views(), batch=64))


@planted("target-scale", area="diffusion")
def predicts_noise_of_a_scale_of_hundreds(trainer):
    """The noise to be predicted has the range of bytes, and what the network gets is divided by 255."""

    class Denoiser(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(3, 2, hidden=48)

        def training_step(self, batch):
            points = batch[0]
            time = torch.rand(len(points), 1)
            noise = 255.0 * torch.randn_like(points)
            noised = (1 - time).sqrt() * points + time.sqrt() * noise / 255.0
            return F.mse_loss(self.net(torch.cat([noised, time], 1)), noise)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    trainer(max_epochs=3).fit(Denoiser(), loader(ring(), batch=64))


@planted("cannot-overfit", area="contrastive")
def multiplies_similarities_by_the_temperature(trainer):
    """Cosines are multiplied by 0.07 where they are to be divided by it: all pairs score about the same."""

    class Twins(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(12, 16)

        def training_step(self, batch):
            first, second = (F.normalize(self.net(view), dim=1) for view in batch)
            return F.cross_entropy(first @ second.T * 0.07, torch.arange(len(first)))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    trainer(max_epochs=4).fit(Twins(), loader(*views()))
