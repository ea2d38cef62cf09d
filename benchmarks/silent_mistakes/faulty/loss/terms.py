"""Terms that are always zero, targets of another scale, and losses that favour one class."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from paceline import TrainModule

from ...programs import planted
from ...tasks import (
    convolutions,
    drawn,
    forecasts,
    graphs,
    loader,
    loaders,
    mlp,
    pictures,
    regression,
    ring,
    two_classes,
    views,
)


class Vae(TrainModule):
    """A variational autoencoder of small pictures."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = mlp(64, 8, hidden=32), mlp(4, 64, hidden=32)

    def terms(self, batch):
        pixels = batch[0].flatten(1)
        mean, log_variance = self.encoder(pixels).chunk(2, 1)
        code = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        reconstruction = (self.decoder(code) - pixels).square().sum(1).mean()
        return reconstruction, 0.5 * (mean**2 + log_variance.exp() - log_variance - 1).sum(1).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


@planted("zero-term", area="vision", source="https://github.com/lucidrains/DALLE-pytorch/issues/92")
def weighs_the_divergence_with_zero(trainer):
    """The weight of the divergence is an argument whose default is 0, and nobody passes it."""

    class Weighted(Vae):
        def __init__(self, kl_weight=0.0):
            super().__init__()
            self.kl_weight = kl_weight

        def training_step(self, batch):
            reconstruction, divergence = self.terms(batch)
            self.log("reconstruction", reconstruction)
            return reconstruction + self.kl_weight * divergence

        def validation_step(self, batch):
            return sum(self.terms(batch))

    trainer(max_epochs=3).fit(Weighted(), *loaders(*pictures()))


@planted("zero-term", area="vision", source="https://github.com/alexlee-gk/video_prediction/issues/41")
def anneals_the_divergence_by_an_integer_division(trainer):
    """The weight grows with ``step // steps``, an integer division: it is 0 up to the last step."""

    class Annealed(Vae):
        def training_step(self, batch):
            reconstruction, divergence = self.terms(batch)
            weight = min(1.0, self.trainer.global_step // self.trainer.total_steps)
            return reconstruction + weight * divergence

        def validation_step(self, batch):
            return sum(self.terms(batch))

    trainer(max_epochs=3).fit(Annealed(), *loaders(*pictures()))


@planted("zero-term", area="contrastive")
def clamps_the_margin_of_negatives_away(trainer):
    """The margin is subtracted with the wrong sign inside of a clamp: the term of negatives is always 0."""

    class Metric(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder = mlp(12, 8, hidden=32)

        def loss(self, batch):
            a, b = (F.normalize(self.encoder(view), dim=1) for view in batch)
            near = (a - b).square().sum(1)
            far = (a - b.roll(1, 0)).square().sum(1)
            return near.mean() + (-far - 0.5).clamp(min=0).mean()

        def training_step(self, batch):
            return self.loss(batch)

        def validation_step(self, batch):
            return self.loss(batch)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    trainer(max_epochs=3).fit(Metric(), *loaders(*views()))


@planted("zero-term", area="table")
def weighs_expensive_houses_by_a_limit_in_another_unit(trainer):
    """A term for prices above 500000 is added, and prices are standardised: no row is counted in it."""

    class Prices(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(6, 1)

        def training_step(self, batch):
            error = (self.net(batch[0]).squeeze(1) - batch[1]).square()
            expensive = (batch[1] > 500_000).float()
            extra = (expensive * error).sum() / expensive.sum().clamp(min=1)
            self.log("expensive", extra)
            return error.mean() + extra

        def validation_step(self, batch):
            return F.mse_loss(self.net(batch[0]).squeeze(1), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=3).fit(Prices(), *loaders(*regression()))


@planted("zero-term", area="gan")
def penalises_gradients_above_a_limit_that_is_never_reached(trainer):
    """A one-sided gradient penalty begins at a norm of 100, where 1 was meant, so that it is always 0."""

    class Gan(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.generator, self.critic = mlp(4, 2, hidden=32), mlp(2, 1, hidden=32)

        def configure_optimizers(self):
            return [torch.optim.Adam(part.parameters(), lr=1e-3) for part in (self.generator, self.critic)]

        def penalty(self, points):
            points = points.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.critic(points).sum(), points, create_graph=True)
            return torch.relu(gradient.norm(dim=1) - 100.0).square().mean()

        def training_step(self, batch):
            (real,) = batch
            generator, critic = self.optimizers()
            fake = self.generator(torch.randn(len(real), 4))
            self.toggle_optimizer(critic)
            loss = F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(fake.detach())).mean()
            penalty = 10 * self.penalty(real)
            self.log("penalty", penalty)
            critic.zero_grad()
            self.manual_backward(loss + penalty)
            critic.step()
            self.untoggle_optimizer(critic)
            self.toggle_optimizer(generator)
            loss = F.softplus(-self.critic(fake)).mean()
            generator.zero_grad()
            self.manual_backward(loss)
            generator.step()
            self.untoggle_optimizer(generator)

    trainer(max_epochs=3).fit(Gan(), loader(ring(), batch=64))


@planted("target-scale", area="table", source="https://github.com/gitbooo/CrossViVit/issues/5")
def predicts_prices_of_hundreds_of_thousands(trainer):
    """Prices of houses are targets as they are, about 300000, and inputs alone are standardised."""

    class Prices(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(6, 1)

        def training_step(self, batch):
            return F.l1_loss(self.net(batch[0]).squeeze(1), batch[1])

        def validation_step(self, batch):
            return F.l1_loss(self.net(batch[0]).squeeze(1), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    rows, values = regression()
    trainer(max_epochs=4).fit(Prices(), *loaders(rows, 300_000 + 80_000 * values))


@planted("target-scale", area="series")
def forecasts_a_load_in_watts(trainer):
    """Windows are standardised, and the value to be forecast is in watts, in the thousands."""

    class Forecaster(TrainModule):
        def __init__(self):
            super().__init__()
            self.gru, self.out = nn.GRU(1, 16, batch_first=True), nn.Linear(16, 1)

        def loss(self, batch):
            return F.mse_loss(self.out(self.gru(batch[0])[0][:, -1]).squeeze(1), batch[1])

        def training_step(self, batch):
            return self.loss(batch)

        def validation_step(self, batch):
            return self.loss(batch)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    windows, following = forecasts()
    trainer(max_epochs=3, clip_grad_norm=1.0).fit(Forecaster(), *loaders(windows, 4000 + 900 * following))


@planted("target-scale", area="graph")
def predicts_tiny_rates_of_reactions(trainer):
    """Rates of about 1e-5 are targets of a squared error: any output near 0 has nearly no loss."""

    class Rates(TrainModule):
        def __init__(self):
            super().__init__()
            self.enter, self.out = nn.Linear(4, 16), nn.Linear(16, 1)

        def forward(self, nodes, adjacency):
            return self.out(torch.relu(adjacency @ self.enter(nodes)).mean(1)).squeeze(1)

        def training_step(self, batch):
            return F.mse_loss(self(*batch[:2]), batch[2])

        def validation_step(self, batch):
            return F.mse_loss(self(*batch[:2]), batch[2])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    nodes, adjacency, _ = graphs()
    rates = 1e-5 * (adjacency @ nodes)[:, :, 0].mean(1).exp()
    trainer(max_epochs=4).fit(Rates(), *loaders(nodes, adjacency, rates))


def rare(rows, labels, share):
    """Rows in which the second class is rare."""
    kept = (labels == 0) | (torch.rand(len(labels), generator=drawn(90)) < share)
    return rows[kept], labels[kept]


@planted("majority-class", area="table")
def trains_on_two_percent_of_frauds_without_weights(trainer):
    """One in fifty rows is a fraud; the loss has no weights, and "no fraud" is predicted for all."""

    class Fraud(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(8, 1, hidden=8)

        def training_step(self, batch):
            return F.binary_cross_entropy_with_logits(self.net(batch[0]).squeeze(1), batch[1])

        def validation_step(self, batch):
            logits = self.net(batch[0]).squeeze(1)
            self.log("accuracy", ((logits > 0) == (batch[1] > 0.5)).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    trainer(max_epochs=8).fit(Fraud(), *loaders(*rare(*two_classes(1200), 0.02)))


@planted("majority-class", area="vision", source="https://github.com/janghyuncho/PiCIE/issues/28")
def weighs_classes_by_their_counts(trainer):
    """The classes' weights are their counts, where one over them was meant: the frequent one wins."""

    class Network(TrainModule):
        def __init__(self, counts):
            super().__init__()
            self.net = convolutions(classes=2, width=4)
            self.weight = counts / counts.sum()

        def training_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1], weight=self.weight)

        def validation_step(self, batch):
            self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.02)

    images, labels = rare(*pictures(500, classes=2), 0.08)
    trainer(max_epochs=6).fit(Network(labels.bincount().float()), *loaders(images, labels))
