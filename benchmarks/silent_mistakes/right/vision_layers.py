"""Layers used in an uncommon way on purpose: reused, dropped, idle, narrow, without an activation."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import TrainModule

from ..programs import right
from ..tasks_right import accuracy, convolutions, loaders, pictures


class Classifier(TrainModule):
    """Cross-entropy of what ``forward`` gives."""

    def training_step(self, batch):
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch):
        scores = self(batch[0])
        self.log_dict({"loss": F.cross_entropy(scores, batch[1]), "accuracy": accuracy(scores, batch[1])})

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


class Residual(nn.Module):
    """A branch of two layers, added to what it got."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


@right(area="vision", source="https://arxiv.org/abs/1603.09382")
def blocks_are_skipped_at_random(trainer):
    """Stochastic depth: in a training step a block may not be called at all; validation calls all."""

    class StochasticDepth(Classifier):
        def __init__(self, depth=6):
            super().__init__()
            self.stem, self.head = nn.Linear(64, 24), nn.Linear(24, 4)
            self.blocks = nn.ModuleList(Residual(24) for _ in range(depth))

        def forward(self, images):
            x = self.stem(images.flatten(1))
            for number, block in enumerate(self.blocks):
                skip = 0.5 * (number + 1) / len(self.blocks)
                if self.training:
                    if torch.rand(()) >= skip:
                        x = x + (block(x) - x) / (1 - skip)
                else:
                    x = block(x)
            return self.head(x)

    trainer(max_epochs=4).fit(StochasticDepth(), *loaders(*pictures(seed=90)))


@right(area="vision", source="https://arxiv.org/abs/1909.11942")
def one_block_is_applied_six_times(trainer):
    """All layers of the network share their weights, as in ALBERT, with one embedding of the depth."""

    class Shared(Classifier):
        def __init__(self, times=6):
            super().__init__()
            self.stem, self.block, self.head = nn.Linear(64, 24), Residual(24), nn.Linear(24, 4)
            self.depth = nn.Embedding(times, 24)

        def forward(self, images):
            x = self.stem(images.flatten(1))
            for number in range(self.hparams.times):
                x = self.block(x + self.depth.weight[number])
            return self.head(x)

    trainer(max_epochs=4).fit(Shared(), *loaders(*pictures(seed=91)))


@right(area="vision", source="https://arxiv.org/abs/1701.06538")
def some_experts_are_idle(trainer):
    """Each sample goes to one of eight experts, so that some get no sample, and no gradient, in a step."""

    class Experts(Classifier):
        def __init__(self, experts=8):
            super().__init__()
            self.stem = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU())
            self.gate = nn.Linear(24, experts, bias=False)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 4)) for _ in range(experts)
            )

        def forward(self, images):
            h = self.stem(images)
            weights = self.gate(h).softmax(-1)
            best, chosen = weights.max(-1)
            out = torch.zeros(len(h), 4)
            for number, expert in enumerate(self.experts):
                rows = torch.nonzero(chosen == number).flatten()
                if len(rows):
                    out = out.index_add(0, rows, best[rows, None] * expert(h[rows]))
            load = F.one_hot(chosen, len(self.experts)).float().mean(0)
            self.balance = len(self.experts) * (load * weights.mean(0)).sum()
            return out

        def training_step(self, batch):
            scores = self(batch[0])
            return F.cross_entropy(scores, batch[1]) + 0.01 * self.balance

    trainer(max_epochs=5).fit(Experts(), *loaders(*pictures(seed=92)))


@right(area="vision", source="https://arxiv.org/abs/1409.4842")
def auxiliary_head_in_training_only(trainer):
    """A second head on an early layer counts with 0.3 in the loss, and is left out of validation."""

    class Inception(Classifier):
        def __init__(self):
            super().__init__()
            self.early = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
            self.late = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU())
            self.auxiliary = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 4))
            self.head = nn.Sequential(nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(128, 4))

        def forward(self, images):
            early = self.early(images)
            scores = self.head(self.late(early))
            return (scores, self.auxiliary(early)) if self.training else scores

        def training_step(self, batch):
            images, labels = batch
            scores, helper = self(images)
            return F.cross_entropy(scores, labels) + 0.3 * F.cross_entropy(helper, labels)

    trainer(max_epochs=4).fit(Inception(), *loaders(*pictures(seed=93)))


@right(area="vision", source="https://arxiv.org/abs/1706.04599")
def temperature_is_fitted_after_training(trainer):
    """A temperature is used in predictions only; it is no trained parameter and is set after the fit."""

    class Calibrated(Classifier):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(convolutions(), nn.Linear(32, 4))
            self.register_buffer("temperature", torch.ones(()))

        def forward(self, images):
            return self.net(images)

        def predict_step(self, batch):
            return (self(batch[0]) / self.temperature).softmax(1)

        @torch.no_grad()
        def calibrate(self, loader):
            self.eval()
            scores, labels = zip(*((self(x), y) for x, y in loader), strict=True)
            scores, labels = torch.cat(scores), torch.cat(labels)
            heats = torch.linspace(0.5, 3, 26)
            losses = torch.stack([F.cross_entropy(scores / heat, labels) for heat in heats])
            self.temperature.copy_(heats[losses.argmin()])

    train, val = loaders(*pictures(seed=94))
    module = Calibrated()
    trainer(max_epochs=3).fit(module, train, val)
    module.calibrate(val)
    trainer().predict(module, val)


@right(area="vision", source="https://arxiv.org/abs/1207.0580")
def dropout_of_eighty_percent(trainer):
    """A wide layer on few samples has a dropout of 0.8; another one is set to 0 by the settings."""

    class Dropped(Classifier):
        def __init__(self, inputs=0.0, hidden=0.8):
            super().__init__()
            self.net = nn.Sequential(
                nn.Flatten(), nn.Dropout(inputs), nn.Linear(64, 512), nn.ReLU(), nn.Dropout(hidden),
                nn.Linear(512, 4),
            )  # fmt: skip

        def forward(self, images):
            return self.net(images)

    trainer(max_epochs=6).fit(Dropped(), *loaders(*pictures(240, seed=95)))


@right(area="vision", source="https://arxiv.org/abs/1506.02142")
def predictions_are_averaged_over_dropout(trainer):
    """Dropout is active in validation on purpose: ten draws give a mean and a spread."""

    class MonteCarlo(Classifier):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 4)

        def forward(self, images, sample=False):
            active = self.training or sample
            x = F.dropout(F.relu(self.first(images.flatten(1))), 0.2, training=active)
            return self.last(F.dropout(F.relu(self.second(x)), 0.2, training=active))

        def validation_step(self, batch):
            images, labels = batch
            draws = torch.stack([self(images, sample=True).softmax(1) for _ in range(10)])
            self.log("loss", F.nll_loss(draws.mean(0).log(), labels))
            self.log("accuracy", accuracy(draws.mean(0), labels))
            self.log("spread", draws.std(0).mean())

    trainer(max_epochs=4).fit(MonteCarlo(), *loaders(*pictures(seed=96)))


@right(area="vision", source="https://arxiv.org/abs/1502.03167")
def batch_norm_over_pixels_of_two_pictures(trainer):
    """Batches are of two pictures, but each channel has 128 values, of all pixels."""

    class Dense(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16, momentum=0.02), nn.ReLU(),
                nn.Conv2d(16, 1, 3, padding=1),
            )  # fmt: skip

        def training_step(self, batch):
            noisy, clean = batch
            return F.l1_loss(self.net(noisy), clean)

        def validation_step(self, batch):
            noisy, clean = batch
            self.log("l1", F.l1_loss(self.net(noisy), clean))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    clean, _ = pictures(160, seed=97, noise=0.2)
    noisy = clean + 0.5 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(3))
    trainer(max_epochs=3).fit(Dense(), *loaders(noisy, clean, batch=2))


@right(area="vision", source="https://arxiv.org/abs/2010.11929")
def heads_are_split_and_merged_by_hand(trainer):
    """Heads are split by view and transpose, and merged by transpose and reshape, in this order."""

    class Attention(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x):
            n, length, width = x.shape
            q, k, v = self.qkv(x).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
            weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(dim=-1)
            return self.out((weights @ v).transpose(1, 2).reshape(n, length, width))

    class ViT(Classifier):
        def __init__(self, width=32):
            super().__init__()
            self.patches = nn.Conv2d(1, width, 2, 2)
            self.first = nn.Parameter(0.02 * torch.randn(1, 1, width))
            self.places = nn.Parameter(0.2 * torch.randn(1, 17, width))
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
            self.attention = nn.ModuleList(Attention(width, 4) for _ in range(2))
            self.mlp = nn.ModuleList(
                nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)) for _ in range(2)
            )
            self.head = nn.Linear(width, 4)

        def forward(self, images):
            x = self.patches(images).flatten(2).transpose(1, 2)
            x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1) + self.places
            for number in range(2):
                x = x + self.attention[number](self.norms[2 * number](x))
                x = x + self.mlp[number](self.norms[2 * number + 1](x))
            return self.head(x[:, 0])

    trainer(max_epochs=8, clip_grad_norm=1.0).fit(ViT(), *loaders(*pictures(320, seed=98)))


@right(area="vision", source="https://arxiv.org/abs/1801.04381")
def bottlenecks_without_an_activation(trainer):
    """The 1 x 1 layer that narrows each block, and a factorised classifier, are linear by design."""

    def block(narrow, wide):
        return nn.Sequential(
            nn.Conv2d(narrow, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, narrow, 1, bias=False), nn.BatchNorm2d(narrow),
        )  # fmt: skip

    class MobileNet(Classifier):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(1, 8, 3, padding=1)
            self.blocks = nn.ModuleList([block(8, 24), block(8, 24)])
            self.factor, self.head = nn.Linear(32, 6, bias=False), nn.Linear(6, 4)

        def forward(self, images):
            x = self.stem(images)
            for layers in self.blocks:
                x = x + layers(x)
            return self.head(self.factor(F.adaptive_avg_pool2d(x, 2).flatten(1)))

    trainer(max_epochs=4).fit(MobileNet(), *loaders(*pictures(256, seed=99)))


@right(area="vision", source="https://arxiv.org/abs/1802.10062")
def counts_are_predicted_through_a_relu(trainer):
    """The output ends in a ReLU, and no target is below zero: densities whose sum is the count."""

    class Density(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
                nn.Conv2d(16, 1, 1), nn.ReLU(),
            )  # fmt: skip
            nn.init.constant_(self.net[4].bias, 0.3)

        def training_step(self, batch):
            images, density = batch
            return 64 * F.mse_loss(self.net(images), density)

        def validation_step(self, batch):
            images, density = batch
            counted = self.net(images).sum((1, 2, 3))
            self.log("count_error", (counted - density.sum((1, 2, 3))).abs().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    generator = torch.Generator().manual_seed(4)
    points = (torch.rand(320, 1, 8, 8, generator=generator) < 0.08).float()
    kernel = torch.tensor([[[[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]]]) / 16
    density = F.conv2d(points, kernel, padding=1)
    images = 2 * points + 0.2 * torch.randn(points.shape, generator=generator)
    train = DataLoader(TensorDataset(images[:256], density[:256]), batch_size=32, shuffle=True)
    val = DataLoader(TensorDataset(images[256:], density[256:]), batch_size=64)
    trainer(max_epochs=6).fit(Density(), train, val)
