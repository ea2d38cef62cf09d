"""Measures that are no means of batches, and counts that are not reset."""

import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import TrainModule

from ...programs import planted
from ...tasks_data import (
    Classifier,
    Regressor,
    Words,
    convolutions,
    mlp,
    parts,
    pictures,
    prices,
    sentences,
    standard,
    table,
    waves,
)


def small_batches(*tensors, batch=16, evaluated=10):
    train, val = parts(TensorDataset(*tensors))
    return DataLoader(train, batch, shuffle=True), DataLoader(val, evaluated)


def f1(guesses, labels):
    hits = (guesses * labels).sum()
    return 2 * hits / (guesses.sum() + labels.sum()).clamp(min=1)


@planted(
    "batch-means",
    area="table",
    source="https://github.com/namiyousef/argument-mining/issues/45",
)
def averages_f1_over_batches(trainer):
    """F1 is computed on each batch of ten rows, and the mean is logged."""

    class Net(Classifier):
        def validation_step(self, batch):
            x, y = batch
            logits = self(x)
            self.log("loss", F.cross_entropy(logits, y))
            self.log("f1", f1(logits.argmax(1), y))

    x, _ = table()
    rare = (x[:, 0] + 0.5 * x[:, 1] > 1).long()
    trainer(max_epochs=3).fit(Net(mlp(8, 2)), *small_batches(x, rare))


@planted(
    "batch-means",
    area="series",
    source="https://github.com/chaoshangcs/GTS/issues/7",
)
def averages_roots_of_squared_errors(trainer):
    """The root of the mean squared error is taken in each batch."""

    class Forecast(TrainModule):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.GRU(1, 16, batch_first=True), nn.Linear(16, 1)

        def forward(self, x):
            return self.out(self.rnn(x)[0][:, -1])

        def training_step(self, batch):
            return F.mse_loss(self(batch[0]), batch[1])

        def validation_step(self, batch):
            self.log("rmse", F.mse_loss(self(batch[0]), batch[1]).sqrt())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    trainer(max_epochs=2).fit(Forecast(), *small_batches(*waves()))


@planted(
    "batch-means",
    area="language",
    source="https://github.com/macournoyer/neuralconvo/issues/67",
)
def averages_the_perplexity_of_batches(trainer):
    """The exponential of each batch's loss is logged, not that of the mean loss."""
    tokens, _ = sentences(length=13)

    class Language(TrainModule):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(60, 24)
            self.rnn = nn.GRU(24, 32, batch_first=True)
            self.out = nn.Linear(32, 60)

        def loss(self, tokens):
            hidden, _ = self.rnn(self.embedding(tokens[:, :-1]))
            return F.cross_entropy(self.out(hidden).flatten(0, 1), tokens[:, 1:].flatten())

        def training_step(self, batch):
            return self.loss(batch[0])

        def validation_step(self, batch):
            self.log("perplexity", self.loss(batch[0]).exp())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    trainer(max_epochs=2).fit(Language(), *small_batches(tokens))


@planted(
    "batch-means",
    area="table",
    source="https://github.com/mlcommons/GaNDLF/issues/505",
)
def averages_the_area_under_the_curve(trainer):
    """The area under the ROC curve of ten rows at a time, by the function and not the object."""

    class Net(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(8, 1)

        def training_step(self, batch):
            return F.binary_cross_entropy_with_logits(self.net(batch[0]).squeeze(1), batch[1].float())

        def validation_step(self, batch):
            scores = self.net(batch[0]).squeeze(1).sigmoid()
            area = torchmetrics.functional.classification.binary_auroc(scores, batch[1])
            self.log("auroc", area)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    x, y = table(classes=2)
    trainer(max_epochs=3).fit(Net(), *small_batches(x, y, evaluated=20))


@planted("batch-means", area="table")
def averages_determination_over_batches(trainer):
    """The coefficient of determination is computed against the mean of each batch of eight."""

    class Net(Regressor):
        def validation_step(self, batch):
            x, y = batch
            left = (self.model(x) - y).square().sum()
            return {"r2": 1 - left / (y - y.mean()).square().sum()}

    trainer(max_epochs=3).fit(Net(mlp(6, 1)), *small_batches(*prices(), evaluated=8))


@planted(
    "metric-not-reset",
    area="vision",
    source="https://github.com/MichiganCOG/ViP/issues/34",
)
def counts_hits_of_all_validations(trainer):
    """``correct`` and ``total`` are set to 0 in the constructor only."""

    class Net(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = convolutions()
            self.correct = self.total = 0

        def training_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch):
            self.correct += (self.net(batch[0]).argmax(1) == batch[1]).sum().item()
            self.total += len(batch[1])

        def on_validation_end(self):
            self.log("accuracy", self.correct / self.total)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    images, labels = pictures()
    trainer(max_epochs=4).fit(Net(), *small_batches(standard(images), labels, evaluated=60))


@planted(
    "metric-not-reset",
    area="language",
    source="https://github.com/haven-jeon/KoGPT2-subtasks/pull/1",
)
def computes_a_metric_object_without_reset(trainer):
    """``compute()`` is logged at the end of each validation, and ``reset()`` is never called."""

    class Text(Classifier):
        def __init__(self):
            super().__init__(Words(), lr=3e-3)
            self.accuracy = torchmetrics.classification.MulticlassAccuracy(2, average="micro")

        def validation_step(self, batch):
            self.accuracy.update(self(batch[0]), batch[1])

        def on_validation_end(self):
            self.log("accuracy", self.accuracy.compute())

    trainer(max_epochs=4).fit(Text(), *small_batches(*sentences(), evaluated=64))


@planted(
    "metric-not-reset",
    area="table",
    source="https://github.com/freud14/poutyne/issues/72",
)
def collects_guesses_without_end(trainer):
    """The correlation is over lists of guesses and targets that are never emptied."""

    class Net(Regressor):
        def __init__(self):
            super().__init__(mlp(6, 1))
            self.guesses, self.targets = [], []

        def validation_step(self, batch):
            self.guesses.append(self.model(batch[0]).flatten())
            self.targets.append(batch[1].flatten())

        def on_validation_end(self):
            pair = torch.stack([torch.cat(self.guesses), torch.cat(self.targets)])
            self.log("correlation", pair.corrcoef()[0, 1])

    trainer(max_epochs=4).fit(Net(), *small_batches(*prices(), evaluated=40))
