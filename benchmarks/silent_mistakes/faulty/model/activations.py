"""Units that are dead, equal or constant."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from paceline import TrainModule, seed_everything

from ...programs import planted
from ...tasks import (
    clusters,
    convolutions,
    forecasts,
    graphs,
    loader,
    loaders,
    mlp,
    pictures,
    sentences,
    two_classes,
    waves,
)


class Supervised(TrainModule):
    """Cross-entropy of ``forward``, and its accuracy."""

    rate = 5e-3

    def training_step(self, batch):
        return F.cross_entropy(self(*batch[:-1]), batch[-1])

    def validation_step(self, batch):
        logits = self(*batch[:-1])
        self.log("loss", F.cross_entropy(logits, batch[-1]))
        self.log("accuracy", (logits.argmax(1) == batch[-1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.rate)


@planted(
    "dead-units",
    area="table",
    source="https://discuss.pytorch.org/t/cross-entropy-loss-is-not-decreasing/43814/16",
)
def starts_with_biases_of_minus_ten(trainer):
    """Biases start at -10, so that no hidden unit is above 0 for any row."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.net = mlp(8, 3)
            nn.init.constant_(self.net[0].bias, -10.0)

        def forward(self, x):
            return self.net(x)

    trainer(max_epochs=4).fit(Network(), *loaders(*clusters()))


@planted("dead-units", area="vision")
def draws_weights_from_negative_numbers_for_positive_inputs(trainer):
    """Inputs are in [0, 1] and the first weights are drawn from [-0.1, 0]: ReLU gives 0 for all."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(64, 32)
            self.second = nn.Linear(32, 4)
            nn.init.uniform_(self.first.weight, -0.1, 0.0)
            nn.init.zeros_(self.first.bias)

        def forward(self, images):
            return self.second(torch.relu(self.first(images.flatten(1))))

    images, labels = pictures()
    trainer(max_epochs=4).fit(Network(), *loaders(images.sigmoid(), labels))


@planted("dead-units", area="series")
def negates_what_goes_into_the_last_relu(trainer):
    """A ReLU follows a negated softplus, so that its output is 0 for every series."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(1, 16, 5, padding=2)
            self.gate = nn.Linear(16, 16)
            self.head = nn.Linear(32, 3)

        def forward(self, series):
            features = F.relu(self.conv(series.transpose(1, 2))).mean(2)
            gate = F.relu(-F.softplus(self.gate(features)))
            return self.head(torch.cat([features, gate], 1))

    trainer(max_epochs=4).fit(Network(), *loaders(*waves()))


@planted("dead-units", area="graph")
def starts_all_biases_at_minus_five(trainer):
    """A routine that initialises all layers sets biases to -5, for the sake of the last layer's."""

    def initialise(layer):
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.constant_(layer.bias, -5.0)

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.enter, self.message = nn.Linear(4, 16), nn.Linear(16, 16)
            self.head = nn.Linear(16, 2)
            self.apply(initialise)

        def forward(self, nodes, adjacency):
            nodes = F.relu(self.enter(nodes))
            nodes = F.relu(self.message(adjacency @ nodes))
            return self.head(nodes.mean(1))

    trainer(max_epochs=4).fit(Network(), *loaders(*graphs()))


@planted(
    "dead-units",
    "high-rate",
    area="table",
    source="https://discuss.pytorch.org/t/cross-entropy-loss-is-not-decreasing/43814/16",
)
def kills_the_hidden_layers_with_a_large_rate(trainer):
    """The rate is so large that after some steps no hidden unit is above 0, and the loss stays."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)
            )

        def forward(self, rows):
            return self.net(rows)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1.0, momentum=0.9)

    seed_everything(0)
    trainer(max_epochs=4).fit(Network(), *loaders(*clusters()))


class Bytes(Dataset):
    """Pictures as bytes from 0 to 255, which are scaled when they are read."""

    def __init__(self, n=256):
        pixels, self.labels = pictures(n)
        self.pixels = (pixels.sigmoid() * 255).to(torch.uint8)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        return (self.pixels[row] // 255).float(), self.labels[row]


@planted("constant-output", "all-padding", area="vision")
def divides_bytes_by_255_as_integers(trainer):
    """Bytes are divided by 255 as integers, which gives 0 nearly everywhere."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), *mlp(64, 4, hidden=32))

        def forward(self, images):
            return self.net(images)

    train, valid = torch.utils.data.random_split(Bytes(), [200, 56])
    trainer(max_epochs=3).fit(Network(), DataLoader(train, 32, shuffle=True), DataLoader(valid, 56))


@planted(
    "constant-output",
    "dead-units",
    area="language",
    source="https://github.com/ProteomicsML/ProteomicsML/pull/203",
)
def ends_a_regression_with_a_relu_that_is_never_above_zero(trainer):
    """The LSTM's output layer has a ReLU and starts below 0 for all peptides: it stays at 0."""

    class Peptides(TrainModule):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(30, 8, padding_idx=0)
            self.lstm = nn.LSTM(8, 16, batch_first=True)
            self.out = nn.Sequential(nn.Linear(16, 1), nn.ReLU())
            nn.init.constant_(self.out[0].bias, -2.0)

        def forward(self, tokens):
            return self.out(self.lstm(self.embedding(tokens))[0].mean(1)).squeeze(1)

        def training_step(self, batch):
            tokens, lengths, _ = batch
            return F.mse_loss(self(tokens), lengths / 12)

        def validation_step(self, batch):
            tokens, lengths, _ = batch
            return F.mse_loss(self(tokens), lengths / 12)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=3).fit(Peptides(), *loaders(*sentences()))


@planted("constant-output", area="vision", source="https://github.com/pytorch/pytorch/pull/12968")
def normalises_over_one_feature(trainer):
    """A layer norm over an axis of length 1 gives its bias for every picture."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.features = convolutions()[:-1]
            self.score = nn.Linear(16, 1)
            self.norm = nn.LayerNorm(1)
            self.head = nn.Linear(1, 4)

        def forward(self, images):
            return self.head(self.norm(self.score(self.features(images))))

    trainer(max_epochs=3).fit(Network(), *loaders(*pictures()))


@planted("constant-output", area="table", source="https://github.com/marian-nmt/marian-dev/issues/21")
def takes_softmax_of_one_output(trainer):
    """The network's only output goes through a softmax, which gives 1 for every row."""

    class Network(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.Softmax(dim=1))

        def forward(self, rows):
            return self.net(rows).squeeze(1).clamp(1e-4, 1 - 1e-4)

        def training_step(self, batch):
            return F.binary_cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch):
            probabilities = self(batch[0])
            self.log("accuracy", ((probabilities > 0.5) == (batch[1] > 0.5)).float().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer(max_epochs=3).fit(Network(), *loaders(*two_classes()))


@planted("constant-output", "no-gradient", area="series")
def takes_the_state_of_the_layer_and_not_of_the_series(trainer):
    """The decoder is given the first state of the GRU, which is 0 for all series."""

    class Forecaster(TrainModule):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 16, batch_first=True)
            self.out = nn.Linear(16, 1)

        def forward(self, window):
            start = torch.zeros(1, len(window), 16)
            _, end = self.gru(window, start)
            del end
            return self.out(start[0]).squeeze(1)

        def training_step(self, batch):
            return F.l1_loss(self(batch[0]), batch[1])

        def validation_step(self, batch):
            return F.l1_loss(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=3).fit(Forecaster(), *loaders(*forecasts()))


@planted("constant-output", area="language")
def attends_from_words_that_are_all_masked(trainer):
    """The mask keeps padding and hides words, so that the mean of the words is the mean of padding."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(30, 16, padding_idx=0)
            self.head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))

        def forward(self, tokens, lengths):
            words = self.embedding(tokens)
            kept = (tokens == 0).float()[:, :, None]
            return self.head((words * kept).sum(1) / lengths[:, None])

    trainer(max_epochs=3).fit(Network(), *loaders(*sentences()))


@planted("equal-units", area="table", source="https://github.com/wagonhelm/NaNmnist/issues/2")
def starts_all_weights_at_zero(trainer):
    """Weights and biases of both layers start at 0, so that the hidden units stay equal."""

    class Network(Supervised):
        rate = 0.05

        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)
            for parameter in self.parameters():
                nn.init.zeros_(parameter)

        def forward(self, rows):
            return self.last(torch.sigmoid(self.first(rows)))

    trainer(max_epochs=4).fit(Network(), *loaders(*clusters()))


@planted("equal-units", area="vision")
def fills_convolutions_with_one_constant(trainer):
    """Each convolution's weights are filled with the same number, so that its channels are equal."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.net = convolutions()
            for layer in self.net:
                if isinstance(layer, nn.Conv2d):
                    nn.init.constant_(layer.weight, 0.05)
                    nn.init.zeros_(layer.bias)

        def forward(self, images):
            return self.net(images)

    trainer(max_epochs=3).fit(Network(), *loaders(*pictures()))


class Weighted(nn.Module):
    """A linear layer of our own."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(outputs, inputs) / inputs)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.weight.T + self.bias


@planted("equal-units", area="series")
def makes_own_layers_of_ones(trainer):
    """A layer of one's own starts with ones divided by their number, equal in each unit."""

    class Forecaster(TrainModule):
        def __init__(self):
            super().__init__()
            self.hidden, self.out = Weighted(16, 24), Weighted(24, 1)

        def training_step(self, batch):
            forecast = self.out(torch.tanh(self.hidden(batch[0].squeeze(2)))).squeeze(1)
            return F.mse_loss(forecast, batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    trainer(max_epochs=4).fit(Forecaster(), loader(*forecasts()))


@planted("constant-output", area="series", source="https://proceedings.mlr.press/v9/glorot10a.html")
def stacks_fifteen_sigmoids(trainer):
    """Fifteen layers with a sigmoid after each: what reaches the last one is the same for all windows."""

    class Network(TrainModule):
        def __init__(self):
            super().__init__()
            layers = [layer for _ in range(15) for layer in (nn.Linear(16, 16), nn.Sigmoid())]
            self.net = nn.Sequential(*layers, nn.Linear(16, 1))

        def training_step(self, batch):
            windows, targets = batch
            return F.mse_loss(self.net(windows.flatten(1)), targets.reshape(-1, 1))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    trainer(max_epochs=4).fit(Network(), loader(*forecasts(), batch=64))
