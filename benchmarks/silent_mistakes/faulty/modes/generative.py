"""Wrong modes and missing gradients in diffusion, adversarial and contrastive training."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from paceline import TrainModule

from ...programs import planted
from ...tasks import loader, mlp, ring, views


@planted("eval-mode-in-training", area="gan")
def samples_from_the_generator_and_leaves_it_in_eval_mode(trainer):
    """The end of each epoch samples in eval mode; the generator's batch norms are never trained again."""

    class Gan(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            first, last = nn.Linear(4, 32), nn.Linear(32, 2)
            self.generator = nn.Sequential(first, nn.BatchNorm1d(32), nn.ReLU(), last)
            self.critic = mlp(2, 1, hidden=32)

        def configure_optimizers(self):
            return [torch.optim.Adam(part.parameters(), lr=1e-3) for part in (self.generator, self.critic)]

        def on_train_epoch_end(self):
            self.generator.eval()
            with torch.no_grad():
                samples = self.generator(torch.randn(64, 4))
            self.log("spread", samples.std())

        def training_step(self, batch):
            (real,) = batch
            generator, critic = self.optimizers()
            fake = self.generator(torch.randn(len(real), 4))
            self.toggle_optimizer(critic)
            loss = F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(fake.detach())).mean()
            critic.zero_grad()
            self.manual_backward(loss)
            critic.step()
            self.untoggle_optimizer(critic)
            self.toggle_optimizer(generator)
            loss = F.softplus(-self.critic(fake)).mean()
            generator.zero_grad()
            self.manual_backward(loss)
            generator.step()
            self.untoggle_optimizer(generator)

    trainer(max_epochs=3).fit(Gan(), loader(ring(), batch=64))


@planted("no-gradient", area="contrastive")
def stops_the_gradient_on_both_sides(trainer):
    """Both views' features are detached, so that the predictor alone is trained and the encoder is not."""

    class SimSiam(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder, self.predictor = mlp(12, 8, hidden=32), mlp(8, 8)

        def training_step(self, batch):
            a, b = self.encoder(batch[0]).detach(), self.encoder(batch[1]).detach()
            forth = F.cosine_similarity(self.predictor(a), b).mean()
            back = F.cosine_similarity(self.predictor(b), a).mean()
            return -(forth + back) / 2

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    trainer(max_epochs=3).fit(SimSiam(), loader(*views(), batch=64))


@planted("no-gradient", area="diffusion")
def embeds_the_time_without_a_gradient(trainer):
    """The time's network is called in the block of no_grad that draws the noise."""

    class Denoiser(TrainModule):
        def __init__(self):
            super().__init__()
            self.time = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 32))
            self.enter, self.leave = nn.Linear(2, 32), mlp(32, 2, hidden=32)

        def training_step(self, batch):
            (points,) = batch
            with torch.no_grad():
                time = torch.rand(len(points), 1)
                noise = torch.randn_like(points)
                noised = (1 - time).sqrt() * points + time.sqrt() * noise
                shift = self.time(time)
            return F.mse_loss(self.leave(F.silu(self.enter(noised) + shift)), noise)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    trainer(max_epochs=3).fit(Denoiser(), loader(ring(), batch=64))
