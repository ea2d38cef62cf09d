"""How outputs become predictions and are compared with targets."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import TrainModule

from ...programs import planted
from ...tasks_data import (
    Regressor,
    convolutions,
    drawn,
    graphs,
    loaders,
    mlp,
    pictures,
    prices,
    sentences,
    standard,
    table,
    waves,
)


class Binary(TrainModule):
    """One logit for each row; subclasses measure it."""

    def __init__(self, columns=8):
        super().__init__()
        self.net = mlp(columns, 1)

    def training_step(self, batch):
        x, y = batch
        return F.binary_cross_entropy_with_logits(self.net(x), y.float().unsqueeze(1))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


@planted("broadcast-metric", area="table")
def compares_a_column_with_a_row(trainer):
    """Predictions of shape (N, 1) are compared with labels of shape (N,): N x N comparisons."""

    class Net(Binary):
        def validation_step(self, batch):
            x, y = batch
            predicted = (self.net(x).sigmoid() > 0.5).long()
            self.log("accuracy", (predicted == y).float().mean())

    trainer(max_epochs=4).fit(Net(), *loaders(*table(classes=2)))


@planted(
    "broadcast-metric",
    area="table",
    source="https://github.com/SparkyTruck/deepmd-jax/issues/17",
)
def subtracts_a_row_from_a_column(trainer):
    """The mean absolute error subtracts targets (N,) from outputs (N, 1); the loss squeezes them."""

    class Net(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))

        def training_step(self, batch):
            x, y = batch
            return F.mse_loss(self.net(x).squeeze(-1), y)

        def validation_step(self, batch):
            x, y = batch
            self.log("mae", torch.mean(torch.abs(self.net(x) - y)))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    x, y = prices()
    trainer(max_epochs=4).fit(Net(), *loaders(x, y.squeeze(1)))


@planted(
    "broadcast-metric",
    area="series",
    source="https://github.com/py-why/EconML/issues/420",
)
def scores_forecasts_of_another_shape(trainer):
    """The score takes the difference of forecasts (N,) and targets (N, 1)."""

    class Forecast(Regressor):
        def validation_step(self, batch):
            x, y = batch
            forecast = self.model(x)[:, 0]
            self.log("r2", 1 - (forecast - y).square().mean() / y.var())

    x, y = waves()
    train = DataLoader(TensorDataset(x[:192], y[:192]), 16, shuffle=True)
    val = DataLoader(TensorDataset(x[192:], y[192:]), 64)
    trainer(max_epochs=4).fit(Forecast(nn.Sequential(nn.Flatten(), mlp(24, 1)), 5e-3), train, val)


@planted(
    "logits-as-probabilities",
    area="table",
    source="https://github.com/CompVis/adaptive-style-transfer/issues/4",
)
def puts_the_threshold_of_probabilities_on_logits(trainer):
    """Logits above 0.5 count as positive, without a sigmoid."""

    class Net(Binary):
        def validation_step(self, batch):
            x, y = batch
            logits = self.net(x).squeeze(1)
            self.log("loss", F.binary_cross_entropy_with_logits(logits, y.float()))
            self.log("accuracy", ((logits > 0.5).long() == y).float().mean())

    trainer(max_epochs=3).fit(Net(), *loaders(*table(classes=2)))


@planted(
    "logits-as-probabilities",
    area="vision",
    source="https://github.com/dr-costas/dnd-sed/issues/1",
)
def rounds_logits_of_several_labels(trainer):
    """Outputs of a model with several labels are rounded as if a sigmoid had been applied."""
    images, labels = pictures()
    several = F.one_hot(labels, 3).float()
    several[:, 2] = (images.float().mean((1, 2, 3)) > 107).float()

    class Labels(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = convolutions()
            self.loss = nn.BCEWithLogitsLoss()

        def training_step(self, batch):
            return self.loss(self.net(batch[0]), batch[1])

        def validation_step(self, batch):
            outputs = self.net(batch[0])
            self.log("loss", self.loss(outputs, batch[1]))
            right = torch.round(outputs.clamp(0, 1)) == batch[1]
            self.log("exact", right.all(1).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    trainer(max_epochs=3).fit(Labels(), *loaders(standard(images), several, batch=20))


@planted(
    "logits-as-probabilities",
    area="language",
    source="https://github.com/huggingface/transformers/pull/26936",
)
def makes_labels_of_logits_at_one_half(trainer):
    """``np.where(logits > 0.5, 1, 0)`` of a script for several labels, on raw logits."""
    tokens, labels = sentences()
    topics = torch.stack([labels, (tokens % 5 == 0).sum(1).gt(2).long()], 1)

    class Topics(TrainModule):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.EmbeddingBag(60, 24, mode="mean"), nn.Linear(24, 2)

        def forward(self, tokens):
            return self.head(torch.tanh(self.embedding(tokens)))

        def training_step(self, batch):
            return F.binary_cross_entropy_with_logits(self(batch[0]), batch[1].float())

        def validation_step(self, batch):
            logits = self(batch[0])
            predicted = torch.where(logits > 0.5, 1, 0)
            self.log("hamming", (predicted != batch[1]).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-2)

    trainer(max_epochs=3).fit(Topics(), *loaders(tokens, topics))


@planted(
    "argmax-axis",
    area="contrastive",
    source="https://github.com/Zasder3/train-CLIP/issues/6",
)
def takes_the_argmax_of_the_whole_matrix(trainer):
    """``argmax`` without an axis gives one number for the whole matrix of similarities."""
    images, labels = pictures(count=256)
    captions = torch.cat([F.one_hot(labels, 3).float(), images.float().mean((2, 3)) / 40 - 2.7], 1)
    captions = captions + 0.05 * torch.randn(captions.shape, generator=drawn(4))

    class Clip(TrainModule):
        def __init__(self):
            super().__init__()
            self.image, self.text = convolutions(classes=8), mlp(4, 8)

        def logits(self, batch):
            a = F.normalize(self.image(batch[0]), dim=1)
            return a @ F.normalize(self.text(batch[1]), dim=1).T / 0.1

        def training_step(self, batch):
            logits = self.logits(batch)
            own = torch.arange(len(logits))
            return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2

        def validation_step(self, batch):
            logits = self.logits(batch)
            own = torch.arange(len(logits))
            self.log("accuracy", (torch.argmax(logits) == own).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    trainer(max_epochs=3).fit(Clip(), *loaders(standard(images), captions, batch=32))


@planted("argmax-axis", area="language")
def takes_the_argmax_over_positions(trainer):
    """Tags are taken over axis 1, the positions, of which there are as many as tags: 6."""
    tokens, _ = sentences(length=6)
    tags = tokens // 10

    class Tagger(TrainModule):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(60, 16)
            self.rnn = nn.GRU(16, 12, batch_first=True, bidirectional=True)
            self.out = nn.Linear(24, 6)

        def forward(self, tokens):
            return self.out(self.rnn(self.embedding(tokens))[0])

        def training_step(self, batch):
            return F.cross_entropy(self(batch[0]).transpose(1, 2), batch[1])

        def validation_step(self, batch):
            tokens, tags = batch
            self.log("accuracy", (self(tokens).argmax(dim=1) == tags).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    trainer(max_epochs=4).fit(Tagger(), *loaders(tokens, tags))


@planted("argmax-axis", area="vision")
def takes_the_argmax_over_columns_of_pixels(trainer):
    """``argmax(-1)`` of (N, classes, 8, 8) masks goes over columns; one axis of the labels is broadcast."""
    images, _ = pictures()
    smooth = F.avg_pool2d(standard(images), 3, 1, 1)
    masks = (smooth > 0.5).long() + (smooth > -0.3).long()

    class Segment(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1)
            )

        def training_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1].squeeze(1))

        def validation_step(self, batch):
            logits = self.net(batch[0])
            guess = logits.argmax(-1, keepdim=True)
            self.log("pixels", (guess == batch[1]).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    trainer(max_epochs=3).fit(Segment(), *loaders(standard(images), masks, batch=20))


@planted("argmax-axis", area="graph")
def takes_the_argmax_over_the_rows_of_a_transposed_batch(trainer):
    """Two graphs are evaluated at a time, two classes: ``argmax(0)`` compares graphs, not classes."""
    x, edges, y = graphs(count=160)

    class Graphs(TrainModule):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 24), nn.Linear(24, 2)

        def forward(self, x, edges):
            near = edges @ x / edges.sum(2, keepdim=True).clamp(min=1)
            return self.b(torch.relu(self.a(torch.cat([x, x * near], 2))).mean(1))

        def training_step(self, batch):
            x, edges, y = batch
            return F.cross_entropy(self(x, edges), y)

        def validation_step(self, batch):
            x, edges, y = batch
            self.log("accuracy", (self(x, edges).argmax(0) == y).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    train = DataLoader(TensorDataset(x[:120], edges[:120], y[:120]), 20, shuffle=True)
    val = DataLoader(TensorDataset(x[120:], edges[120:], y[120:]), 2)
    trainer(max_epochs=3).fit(Graphs(), train, val)
