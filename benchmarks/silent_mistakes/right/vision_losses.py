"""Losses that look wrong and are right: negative, summed, broadcast, zero at last, of rare targets."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from paceline import TrainModule

from ..programs import right
from ..tasks_right import accuracy, convolutions, loaders, pictures


def perceptron(outputs, width=32):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.GELU(), nn.Linear(width, outputs))


def brightness(images):
    """A number of each picture: how bright its upper half is."""
    return images[:, 0, :4].mean((1, 2))


@right(area="vision", source="https://arxiv.org/abs/1703.04977")
def likelihood_of_a_normal_falls_below_zero(trainer):
    """Mean and variance are predicted; the negative log-likelihood of a density is negative at last."""

    class Gaussian(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = perceptron(2)
            self.nll = nn.GaussianNLLLoss()

        def training_step(self, batch):
            mean, raw = self.net(batch[0]).unbind(1)
            return self.nll(mean, batch[1], F.softplus(raw) + 1e-4)

        def validation_step(self, batch):
            mean, raw = self.net(batch[0]).unbind(1)
            self.log("loss", self.nll(mean, batch[1], F.softplus(raw) + 1e-4))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    images, _ = pictures(480, seed=100)
    trainer(max_epochs=8).fit(Gaussian(), *loaders(images, 0.6 * brightness(images)))


@right(area="vision")
def directions_by_a_negative_cosine(trainer):
    """The loss is minus a cosine, from 0 to -1; the length of the output is free."""

    class Direction(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = perceptron(2)

        def training_step(self, batch):
            return -F.cosine_similarity(self.net(batch["image"]), batch["direction"]).mean()

        def validation_step(self, batch):
            cosine = F.cosine_similarity(self.net(batch["image"]), batch["direction"])
            self.log("degrees", cosine.clamp(-1, 1).acos().rad2deg().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    images, _ = pictures(320, seed=101)
    pulls = torch.stack([brightness(images), brightness(images.transpose(2, 3))], 1)
    samples = [{"image": i, "direction": F.normalize(p, dim=0)} for i, p in zip(images, pulls, strict=True)]
    train = torch.utils.data.DataLoader(samples[:240], batch_size=24, shuffle=True)
    trainer(max_epochs=5).fit(Direction(), train, torch.utils.data.DataLoader(samples[240:], batch_size=80))


@right(area="vision", source="https://arxiv.org/abs/1606.04797")
def overlap_of_masks_over_the_batch(trainer):
    """Dice takes probabilities and sums over the pixels of the batch, beside an entropy of logits."""

    class Dice(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
                nn.Conv2d(16, 1, 1),
            )  # fmt: skip

        def training_step(self, batch):
            images, masks = batch
            logits = self.net(images)
            p = logits.sigmoid()
            dice = 1 - (2 * (p * masks).sum() + 1) / (p.sum() + masks.sum() + 1)
            return dice + F.binary_cross_entropy_with_logits(logits, masks)

        def validation_step(self, batch):
            images, masks = batch
            marked = self.net(images) > 0
            both, either = (marked & (masks > 0)).sum((1, 2, 3)), (marked | (masks > 0)).sum((1, 2, 3))
            self.log("iou", (both / either.clamp(min=1)).mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    images, _ = pictures(256, seed=102)
    trainer(max_epochs=4).fit(Dice(), *loaders(images, (F.avg_pool2d(images, 3, 1, 1) > 0.4).float()))


@right(area="vision", source="https://arxiv.org/abs/1708.02002")
def rare_objects_with_a_prior_in_the_bias(trainer):
    """One of 20 is positive: the bias starts at the prior, so that all first predictions are negative."""

    class Focal(TrainModule):
        def __init__(self, prior=0.05, gamma=2.0):
            super().__init__()
            self.net = perceptron(1)
            nn.init.normal_(self.net[-1].weight, std=0.01)
            nn.init.constant_(self.net[-1].bias, -math.log((1 - prior) / prior))

        def loss(self, images, rare):
            logits = self.net(images).squeeze(1)
            entropy = F.binary_cross_entropy_with_logits(logits, rare, reduction="none")
            focused = (1 - torch.exp(-entropy)) ** self.hparams.gamma * entropy
            return focused.sum() / (0.05 * len(rare)), logits

        def training_step(self, batch):
            return self.loss(*batch)[0]

        def on_validation_start(self):
            self.found = self.missed = 0

        def validation_step(self, batch):
            loss, logits = self.loss(*batch)
            self.log("loss", loss)
            self.found += int(((logits > 0) & (batch[1] == 1)).sum())
            self.missed += int(((logits <= 0) & (batch[1] == 1)).sum())

        def on_validation_end(self):
            self.log("recall", self.found / max(1, self.found + self.missed))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    images, _ = pictures(960, seed=103)
    bright = brightness(images)
    trainer(max_epochs=6).fit(Focal(), *loaders(images, (bright > bright.quantile(0.95)).float(), batch=64))


@right(area="vision")
def targets_of_ten_thousands_are_standardised_inside(trainer):
    """Targets are prices of about 300,000; the module standardises them by buffers of the training data."""

    class Price(TrainModule):
        def __init__(self, mean, std):
            super().__init__()
            self.net = perceptron(1)
            self.register_buffer("mean", torch.tensor(mean))
            self.register_buffer("std", torch.tensor(std))

        def forward(self, images):
            return self.net(images).squeeze(1) * self.std + self.mean

        def training_step(self, batch):
            images, price = batch
            return F.smooth_l1_loss(self.net(images).squeeze(1), (price - self.mean) / self.std)

        def validation_step(self, batch):
            images, price = batch
            self.log("absolute_error", F.l1_loss(self(images), price))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    images, _ = pictures(320, seed=104)
    price = 300_000 + 90_000 * brightness(images)
    train, val = loaders(images, price)
    known = price[train.dataset.indices]
    trainer(max_epochs=6).fit(Price(float(known.mean()), float(known.std())), train, val)


@right(area="vision", source="https://arxiv.org/abs/1705.07115")
def tasks_weighted_by_learned_variances(trainer):
    """Two scalars are trained as weights of the losses; a third task has a weight of 0 until epoch 2."""

    class Tasks(TrainModule):
        def __init__(self):
            super().__init__()
            self.body = convolutions()
            self.what, self.bright, self.rebuild = nn.Linear(32, 4), nn.Linear(32, 1), nn.Linear(32, 64)
            self.log_variances = nn.Parameter(torch.zeros(2))

        def training_step(self, batch):
            images, labels, value = batch
            h = self.body(images)
            losses = torch.stack(
                [F.cross_entropy(self.what(h), labels), F.mse_loss(self.bright(h).squeeze(1), value)]
            )
            rebuilt = F.mse_loss(self.rebuild(h), images.flatten(1))
            weighted = (losses * torch.exp(-self.log_variances) + 0.5 * self.log_variances).sum()
            return weighted + (0.1 if self.epoch >= 2 else 0.0) * rebuilt

        def validation_step(self, batch):
            images, labels, value = batch
            h = self.body(images)
            self.log("accuracy", accuracy(self.what(h), labels))
            self.log("error", F.l1_loss(self.bright(h).squeeze(1), value))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    images, labels = pictures(320, seed=105)
    trainer(max_epochs=4).fit(Tasks(), *loaders(images, labels, 2 * brightness(images)))


@right(area="vision")
def probabilities_with_the_loss_for_them(trainer):
    """The model ends in a softmax, and the loss is the negative logarithm of its outputs."""

    class Probabilities(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(perceptron(4), nn.Softmax(dim=1))
            self.loss = nn.NLLLoss()

        def training_step(self, batch):
            return self.loss(torch.log(self.net(batch[0]).clamp(min=1e-8)), batch[1])

        def validation_step(self, batch):
            self.log("sure", self.net(batch[0]).max(1).values.mean())
            self.log("accuracy", accuracy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    trainer(max_epochs=4).fit(Probabilities(), *loaders(*pictures(seed=106)))


@right(area="vision")
def three_quantiles_of_one_target(trainer):
    """Outputs (N, 3) minus targets (N, 1) is meant: each quantile is compared with the same target."""

    class Quantiles(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = perceptron(3)
            self.register_buffer("levels", torch.tensor([0.1, 0.5, 0.9]))

        def training_step(self, batch):
            images, value = batch
            error = value - self.net(images)
            return torch.maximum(self.levels * error, (self.levels - 1) * error).mean()

        def validation_step(self, batch):
            images, value = batch
            low, _, high = self.net(images).split(1, dim=1)
            self.log("covered", ((low <= value) & (value <= high)).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    images, _ = pictures(960, seed=107)
    noise = 0.3 * torch.randn(960, generator=torch.Generator().manual_seed(5))
    trainer(max_epochs=4).fit(Quantiles(), *loaders(images, (2 * brightness(images) + noise)[:, None]))


@right(area="vision")
def margins_are_kept_and_the_loss_is_zero(trainer):
    """A hinge loss is exactly 0 for batches that are right by the margin, near the end for most."""

    class Margin(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(convolutions(), nn.Linear(32, 4))

        def training_step(self, batch):
            return F.multi_margin_loss(self.net(batch[0]), batch[1])

        def validation_step(self, batch):
            self.log("accuracy", accuracy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    trainer(max_epochs=5).fit(Margin(), *loaders(*pictures(seed=108)))


@right(area="vision", source="https://arxiv.org/abs/1901.07884")
def ordered_classes_by_thresholds(trainer):
    """Targets are rows such as 1, 1, 0 of a grade; one score is shared, only its thresholds differ."""

    class Ordinal(TrainModule):
        def __init__(self):
            super().__init__()
            self.score = perceptron(1)
            self.thresholds = nn.Parameter(torch.tensor([0.5, 0.0, -0.5]))

        def forward(self, images):
            return self.score(images) + self.thresholds

        def training_step(self, batch):
            images, grade = batch
            above = (grade[:, None] > torch.arange(3)).float()
            return F.binary_cross_entropy_with_logits(self(images), above)

        def validation_step(self, batch):
            images, grade = batch
            predicted = (self(images) > 0).sum(1)
            self.log("off_by", (predicted - grade).abs().float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    images, _ = pictures(320, seed=109)
    value = brightness(images)
    grades = torch.bucketize(value, value.quantile(torch.tensor([0.25, 0.5, 0.75])))
    trainer(max_epochs=6).fit(Ordinal(), *loaders(images, grades))


@right(area="vision", source="https://arxiv.org/abs/1406.2984")
def key_points_as_maps_of_small_numbers(trainer):
    """Target maps are nearly all 0 with one bump; the loss is a sum over pixels and a mean over samples."""

    class KeyPoints(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(1, 16, 5, padding=2),
                nn.BatchNorm2d(16),
                nn.ReLU(),
                nn.Conv2d(16, 1, 5, padding=2),
            )

        def training_step(self, batch):
            images, maps = batch
            return F.mse_loss(self.net(images), maps, reduction="sum") / len(images)

        def validation_step(self, batch):
            images, maps = batch
            found = self.net(images).flatten(1).argmax(1) == maps.flatten(1).argmax(1)
            self.log("found", found.float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    generator = torch.Generator().manual_seed(6)
    at = torch.randint(1, 7, (320, 2, 1, 1), generator=generator)
    grid = torch.arange(8.0)
    maps = torch.exp(-((grid[:, None] - at[:, :1]).square() + (grid - at[:, 1:]).square()))
    images = (maps > 0.3) * 1.5 - 0.2 + 0.3 * torch.randn(320, 1, 8, 8, generator=generator)
    trainer(max_epochs=6).fit(KeyPoints(), *loaders(images, maps))
