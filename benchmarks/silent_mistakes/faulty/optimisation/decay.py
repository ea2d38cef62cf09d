"""Weight decay that outweighs the gradients, or that is applied to norms and biases."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import TrainModule

from ...programs import planted
from ...tasks_data import (
    Classifier,
    convolutions,
    loaders,
    mlp,
    pictures,
    sentences,
    standard,
    table,
)


@planted("heavy-decay", area="table")
def takes_the_decay_from_ridge_regression(trainer):
    """The strength of 10 that ridge regression had is given to AdamW as its decay."""

    class Net(Classifier):
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01, weight_decay=10)

    trainer(max_epochs=4).fit(Net(mlp(8, 3)), *loaders(*table()))


@planted("heavy-decay", area="vision")
def gives_adam_the_decay_of_adamw(trainer):
    """Adam adds the decay, 0.5 of each weight, to gradients that are a tenth of that."""

    class Net(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = convolutions()

        def training_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch):
            self.log("loss", F.cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3, weight_decay=0.5)

    images, labels = pictures()
    trainer(max_epochs=4).fit(Net(), *loaders(standard(images), labels, batch=20))


@planted("heavy-decay", area="contrastive")
def adds_the_squared_weights_without_a_small_factor(trainer):
    """The penalty on squared weights is added to the loss with a factor of 1."""

    class Pairs(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(8, 8)

        def training_step(self, batch):
            x = batch[0]
            a, b = (F.normalize(self.net(x + 0.1 * torch.randn_like(x)), dim=1) for _ in range(2))
            penalty = sum(p.square().sum() for p in self.net.parameters())
            return F.cross_entropy(a @ b.T / 0.2, torch.arange(len(x))) + penalty

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    x, _ = table()
    trainer(max_epochs=5).fit(Pairs(), DataLoader(TensorDataset(x), 32, shuffle=True))


class Normed(nn.Module):
    """A small transformer with layer norms."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(60, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 2)

    def forward(self, tokens):
        return self.head(self.norm(self.encoder(self.embedding(tokens)).mean(1)))


@planted(
    "decay-on-norms",
    area="language",
    source="https://github.com/dingo-actual/om/issues/12",
)
def decays_layer_norms_and_biases(trainer):
    """AdamW with a decay of 0.1 gets all parameters in one group."""

    class Text(Classifier):
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.1)

    trainer(max_epochs=3).fit(Text(Normed()), *loaders(*sentences()))


@planted(
    "decay-on-norms",
    area="vision",
    source="https://github.com/autrainer/autrainer/pull/166",
)
def decays_batch_norms(trainer):
    """SGD decays the scales and shifts of batch norms like the kernels."""
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 3),
    )
    images, labels = pictures()
    module = TrainModule.of(
        net,
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-2),
    )
    trainer(max_epochs=3).fit(module, *loaders(standard(images), labels, batch=20))


@planted(
    "decay-on-norms",
    area="language",
    source="https://github.com/CyberZHG/keras-bert/issues/60",
)
def matches_the_names_of_norms_wrongly(trainer):
    """Groups are made by names, but the norms are called ``norm1``, not ``LayerNorm``: they decay."""

    class Text(Classifier):
        def configure_optimizers(self):
            no_decay = ["bias", "LayerNorm.weight"]
            named = list(self.named_parameters())
            groups = [
                {
                    "params": [p for n, p in named if not any(part in n for part in no_decay)],
                    "weight_decay": 0.1,
                },
                {
                    "params": [p for n, p in named if any(part in n for part in no_decay)],
                    "weight_decay": 0.0,
                },
            ]
            return torch.optim.AdamW(groups, lr=3e-3)

    trainer(max_epochs=3).fit(Text(Normed()), *loaders(*sentences()))
