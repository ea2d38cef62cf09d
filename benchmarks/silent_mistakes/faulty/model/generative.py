"""Mistakes of layers in diffusion, adversarial and contrastive training."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from paceline import TrainModule

from ...programs import planted
from ...tasks import loader, mlp, pictures, ring, views


class Diffusion(TrainModule):
    """Predicts the noise of noised samples; ``forward`` takes them and the time."""

    def training_step(self, batch):
        clean = batch[0]
        time = torch.rand(len(clean), 1)
        keep = (1 - time).view(-1, *[1] * (clean.dim() - 1))
        noise = torch.randn_like(clean)
        return F.mse_loss(self(keep.sqrt() * clean + (1 - keep).sqrt() * noise, time), noise)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


@planted("hidden-weights", area="diffusion")
def appends_pairs_of_blocks_and_time_layers_to_a_list(trainer):
    """Blocks and the layers of the time stand as tuples in a list, as they are called in pairs."""

    class Denoiser(Diffusion):
        def __init__(self, width=32, depth=3):
            super().__init__()
            self.enter, self.leave = nn.Linear(2, width), nn.Linear(width, 2)
            self.steps = []
            for _ in range(depth):
                self.steps.append((nn.Linear(width, width), nn.Linear(1, width)))

        def forward(self, points, time):
            x = self.enter(points)
            for block, shift in self.steps:
                x = x + F.silu(block(x) + shift(time))
            return self.leave(x)

    trainer(max_epochs=3).fit(Denoiser(), loader(ring(), batch=64))


@planted("scrambled-axes", area="diffusion")
def puts_patches_together_by_a_reshape(trainer):
    """Patches (batch, 16, 4) are made pictures by a reshape, without permuting rows of patches."""

    class Dit(Diffusion):
        def __init__(self, width=24):
            super().__init__()
            self.enter, self.leave = nn.Conv2d(1, width, 2, stride=2), nn.Linear(width, 4)
            self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
            self.positions = nn.Parameter(0.02 * torch.randn(16, width))
            self.layer = nn.TransformerEncoderLayer(width, 2, 48, dropout=0.0, batch_first=True)

        def forward(self, images, time):
            x = self.enter(images).flatten(2).transpose(1, 2) + self.positions + self.time(time)[:, None]
            return self.leave(self.layer(x)).reshape(images.shape)

    images, _ = pictures()
    trainer(max_epochs=3).fit(Dit(), loader(images))


@planted("missing-activation", area="diffusion")
def stacks_linear_layers_in_a_denoiser(trainer):
    """The denoiser is three linear layers, so that its noise is a linear function of the point."""

    class Denoiser(Diffusion):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 48), nn.Linear(48, 48), nn.Linear(48, 2)])

        def forward(self, points, time):
            x = torch.cat([points, time], 1)
            for layer in self.layers:
                x = layer(x)
            return x

    trainer(max_epochs=3).fit(Denoiser(), loader(ring(), batch=64))


@planted("unused-part", area="contrastive")
def compares_features_before_the_projection(trainer):
    """The projection head is called for neither of the views: features are compared."""

    class SimClr(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder, self.projection = mlp(12, 16, hidden=32), mlp(16, 8)

        def forward(self, rows):
            features = self.encoder(rows)
            return F.normalize(features, dim=1)

        def training_step(self, batch):
            a, b = self(batch[0]), self(batch[1])
            return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    trainer(max_epochs=3).fit(SimClr(), loader(*views(), batch=64, drop_last=True))


@planted("shared-weights", area="gan")
def trains_both_critics_of_two_scales_as_one(trainer):
    """The list of critics is one critic times two, where each scale was to have its own."""

    class Gan(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.generator = mlp(4, 2, hidden=32)
            self.critics = nn.ModuleList([mlp(2, 1, hidden=32)] * 2)

        def configure_optimizers(self):
            parts = (self.generator, self.critics)
            return [torch.optim.Adam(part.parameters(), lr=1e-3, betas=(0.5, 0.999)) for part in parts]

        def judge(self, points):
            return torch.cat(
                [critic(points * scale) for critic, scale in zip(self.critics, (1, 3), strict=True)]
            )

        def training_step(self, batch):
            (real,) = batch
            generator, critics = self.optimizers()
            fake = self.generator(torch.randn(len(real), 4))
            self.toggle_optimizer(critics)
            loss = F.softplus(-self.judge(real)).mean() + F.softplus(self.judge(fake.detach())).mean()
            critics.zero_grad()
            self.manual_backward(loss)
            critics.step()
            self.untoggle_optimizer(critics)
            self.toggle_optimizer(generator)
            loss = F.softplus(-self.judge(fake)).mean()
            generator.zero_grad()
            self.manual_backward(loss)
            generator.step()
            self.untoggle_optimizer(generator)

    trainer(max_epochs=3).fit(Gan(), loader(ring(), batch=64))
