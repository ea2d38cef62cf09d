"""Losses whose shapes do not fit, targets in the wrong form, and sums where means were meant."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from paceline import TrainModule

from ...programs import planted
from ...tasks import (
    clusters,
    convolutions,
    forecasts,
    graphs,
    loaders,
    mlp,
    pictures,
    regression,
    sentences,
    several_labels,
    text,
)


@planted("broadcast-loss", area="table", source="https://github.com/pytorch/pytorch/issues/16045")
def fits_a_column_of_predictions_to_a_row_of_targets(trainer):
    """MSELoss of predictions (N, 1) and targets (N,), as in a linear regression of a question."""
    model, loss = nn.Linear(6, 1), nn.MSELoss()
    module = TrainModule.of(model, loss, partial(torch.optim.SGD, lr=0.05))
    rows, targets = regression()
    trainer(max_epochs=4).fit(module, *loaders(rows, targets))


@planted("broadcast-loss", area="table", source="https://github.com/LAMDA-Tabular/TALENT/pull/92")
def squares_differences_of_a_row_and_a_column(trainer):
    """((prediction - target) ** 2).mean() of (N,) and (N, 1) is a mean over all pairs."""

    class Network(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(6, 1)

        def forward(self, rows):
            return self.net(rows).squeeze(-1)

        def training_step(self, batch):
            rows, targets = batch
            return ((self(rows) - targets) ** 2).mean()

        def validation_step(self, batch):
            rows, targets = batch
            self.log("mae", (self(rows) - targets.flatten()).abs().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    rows, targets = regression()
    trainer(max_epochs=4).fit(Network(), *loaders(rows, targets[:, None]))


@planted("broadcast-loss", area="series")
def weighs_errors_of_forecasts_by_a_column(trainer):
    """Errors (N,) are multiplied by weights (N, 1): each error gets every weight."""

    class Forecaster(TrainModule):
        def __init__(self):
            super().__init__()
            self.gru, self.out = nn.GRU(1, 16, batch_first=True), nn.Linear(16, 1)

        def forward(self, window):
            return self.out(self.gru(window)[0][:, -1])[:, 0]

        def training_step(self, batch):
            window, following, weight = batch
            error = F.smooth_l1_loss(self(window), following, reduction="none")
            return (weight * error).mean()

        def validation_step(self, batch):
            window, following, _ = batch
            return F.smooth_l1_loss(self(window), following)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=5e-3)

    windows, following = forecasts()
    weights = torch.linspace(0.2, 1.8, len(windows))[:, None]
    trainer(max_epochs=3).fit(Forecaster(), *loaders(windows, following, weights))


@planted("broadcast-loss", area="graph")
def computes_a_huber_loss_by_hand_over_all_pairs(trainer):
    """A hand-written Huber loss subtracts energies (N,) from outputs (N, 1)."""

    def huber(prediction, target, delta=1.0):
        error = (prediction - target).abs()
        return torch.where(error < delta, 0.5 * error**2, delta * (error - 0.5 * delta)).mean()

    class Energies(TrainModule):
        def __init__(self):
            super().__init__()
            self.enter, self.out = nn.Linear(4, 16), nn.Linear(16, 1)

        def forward(self, nodes, adjacency):
            return self.out(torch.relu(adjacency @ self.enter(nodes)).sum(1))

        def training_step(self, batch):
            nodes, adjacency, energy = batch
            return huber(self(nodes, adjacency), energy)

        def validation_step(self, batch):
            nodes, adjacency, energy = batch
            self.log("error", (self(nodes, adjacency).flatten() - energy).abs().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    nodes, adjacency, _ = graphs()
    energy = (adjacency @ nodes)[:, :, 0].sum(1)
    trainer(max_epochs=4).fit(Energies(), *loaders(nodes, adjacency, energy / energy.std()))


class Houses(Dataset):
    """Rows as dicts, with a price each."""

    def __init__(self):
        self.rows, self.prices = regression()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, row):
        return {"x": self.rows[row], "price": self.prices[row]}


@planted("broadcast-loss", area="table")
def computes_a_normal_likelihood_over_all_pairs(trainer):
    """The log-likelihood of targets (N,) under means and deviations (N, 1) has shape (N, N)."""

    class Gaussian(TrainModule):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(6, 24), nn.ReLU())
            self.mean, self.scale = nn.Linear(24, 1), nn.Linear(24, 1)

        def training_step(self, batch):
            hidden = self.trunk(batch["x"])
            normal = torch.distributions.Normal(self.mean(hidden), F.softplus(self.scale(hidden)) + 0.05)
            return -normal.log_prob(batch["price"]).mean()

        def validation_step(self, batch):
            mean = self.mean(self.trunk(batch["x"])).squeeze(1)
            self.log("rmse", F.mse_loss(mean, batch["price"]).sqrt())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    train, valid = torch.utils.data.random_split(Houses(), [256, 64])
    trainer(max_epochs=4).fit(Gaussian(), DataLoader(train, 32, shuffle=True), DataLoader(valid, 64))


@planted("one-hot-targets", area="table")
def regresses_on_class_indices(trainer):
    """The squared error is taken between one output and the index of the class."""

    class Network(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(8, 1)

        def training_step(self, batch):
            return F.mse_loss(self.net(batch[0]).squeeze(1), batch[1].float())

        def validation_step(self, batch):
            found = self.net(batch[0]).squeeze(1).round().long()
            self.log("accuracy", (found == batch[1]).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=4).fit(Network(), *loaders(*clusters(classes=5)))


@planted("one-hot-targets", area="vision")
def takes_argmax_of_one_hot_labels_over_the_batch(trainer):
    """One-hot labels become indices by argmax(0), which fits as a batch has as many rows as classes."""

    class Network(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = convolutions()

        def training_step(self, batch):
            images, one_hot = batch
            return F.cross_entropy(self.net(images), one_hot.argmax(0))

        def validation_step(self, batch):
            images, one_hot = batch
            self.log("accuracy", (self.net(images).argmax(1) == one_hot.argmax(1)).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    images, labels = pictures(160)
    trainer(max_epochs=2).fit(Network(), *loaders(images, F.one_hot(labels, 4), batch=4))


@planted("one-hot-targets", area="table")
def gives_several_labels_to_cross_entropy(trainer):
    """Vectors of several labels are given to cross_entropy as if they were probabilities of classes."""

    class Network(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(8, 4)

        def training_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch):
            found = self.net(batch[0]) > 0
            self.log("accuracy", (found == (batch[1] > 0.5)).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=4).fit(Network(), *loaders(*several_labels()))


@planted("one-hot-targets", area="language")
def adds_smoothing_without_taking_it_from_the_class(trainer):
    """Smoothing is added to all classes, and the true one keeps its 1: targets have a sum of 1.4."""

    class Network(TrainModule):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.EmbeddingBag(30, 16, padding_idx=0), mlp(16, 2)

        def forward(self, tokens):
            return self.head(self.embedding(tokens))

        def training_step(self, batch):
            tokens, _, labels = batch
            smooth = F.one_hot(labels, 2).float() + 0.2
            return F.cross_entropy(self(tokens), smooth)

        def validation_step(self, batch):
            tokens, _, labels = batch
            self.log("loss", F.cross_entropy(self(tokens), labels))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=3).fit(Network(), *loaders(*sentences()))


@planted("sum-reduction", area="vision", source="https://github.com/tensorflow/models/issues/2243")
def adds_up_the_reconstruction_error_of_a_batch(trainer):
    """The reconstruction is summed over the batch and the divergence is a mean; batches differ in size."""

    class Vae(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = mlp(64, 8, hidden=32), mlp(4, 64, hidden=32)

        def loss(self, images):
            pixels = images.flatten(1)
            mean, log_variance = self.encoder(pixels).chunk(2, 1)
            code = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
            reconstruction = F.mse_loss(self.decoder(code), pixels, reduction="sum")
            divergence = 0.5 * (mean**2 + log_variance.exp() - log_variance - 1).sum(1).mean()
            return reconstruction + divergence

        def training_step(self, batch):
            return self.loss(batch[0])

        def validation_step(self, batch):
            return self.loss(batch[0])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    images, _ = pictures(250)
    trainer(max_epochs=3).fit(Vae(), *loaders(images, batch=48))


@planted("sum-reduction", area="language")
def sums_the_loss_over_words_of_batches_of_any_length(trainer):
    """Cross-entropy is summed over all words, and batches have between 8 and 40 sentences."""

    class Buckets(torch.utils.data.Sampler):
        def __len__(self):
            return 8

        def __iter__(self):
            order = torch.randperm(192)
            sizes = [8, 40, 24, 16, 32, 8, 40, 24]
            yield from (part.tolist() for part in order.split(sizes))

    class Language(TrainModule):
        def __init__(self):
            super().__init__()
            self.embedding, self.gru = nn.Embedding(20, 24), nn.GRU(24, 24, batch_first=True)
            self.out = nn.Linear(24, 20)
            self.loss = nn.CrossEntropyLoss(reduction="sum")

        def training_step(self, batch):
            logits = self.out(self.gru(self.embedding(batch[0][:, :-1]))[0])
            return self.loss(logits.flatten(0, 1), batch[0][:, 1:].flatten())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    tokens = text(192)
    data = torch.utils.data.TensorDataset(tokens)
    trainer(max_epochs=3).fit(Language(), DataLoader(data, batch_sampler=Buckets()))


@planted("sum-reduction", area="series", source="https://github.com/rail-berkeley/rlkit/issues/119")
def sums_the_squared_error_of_the_batch(trainer):
    """MSELoss(reduction="sum") with batches of 64 and a last one of 16, where a mean was meant."""

    class Forecaster(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(16, 1)
            self.criterion = nn.MSELoss(reduction="sum")

        def training_step(self, batch):
            return self.criterion(self.net(batch[0].squeeze(2)).squeeze(1), batch[1])

        def validation_step(self, batch):
            return self.criterion(self.net(batch[0].squeeze(2)).squeeze(1), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=2e-4)

    windows, following = forecasts(260)
    trainer(max_epochs=4).fit(Forecaster(), *loaders(windows, following, batch=64))
