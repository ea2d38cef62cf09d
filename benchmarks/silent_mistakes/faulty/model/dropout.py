"""Dropout that drops everything, or that is active in validation."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from paceline import TrainModule

from ...programs import planted
from ...tasks import (
    clusters,
    forecasts,
    graphs,
    loaders,
    pictures,
    regression,
    sentences,
    views,
    waves,
)


class Supervised(TrainModule):
    """Cross-entropy of ``forward``, and its accuracy."""

    def training_step(self, batch):
        return F.cross_entropy(self(*batch[:-1]), batch[-1])

    def validation_step(self, batch):
        logits = self(*batch[:-1])
        self.log("loss", F.cross_entropy(logits, batch[-1]))
        self.log("accuracy", (logits.argmax(1) == batch[-1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=5e-3)


class Unit3D(nn.Module):
    """Convolution, norm and dropout, as ported from another framework."""

    def __init__(self, inputs, outputs, keep_prob=1.0):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm = nn.BatchNorm2d(outputs)
        self.dropout = nn.Dropout(keep_prob)

    def forward(self, x):
        return self.dropout(F.relu(self.norm(self.conv(x))))


@planted("full-dropout", area="vision", source="https://github.com/hassony2/kinetics_i3d_pytorch/issues/6")
def gives_the_share_that_is_kept_as_p(trainer):
    """keep_prob=1.0 is given to nn.Dropout, whose argument is the share that is dropped."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.units = nn.Sequential(Unit3D(1, 8), nn.MaxPool2d(2), Unit3D(8, 16))
            self.head = nn.Linear(16, 4)

        def forward(self, images):
            return self.head(self.units(images).mean((2, 3)))

    trainer(max_epochs=3).fit(Network(), *loaders(*pictures()))


@planted("full-dropout", area="language", source="https://github.com/piergiaj/pytorch-i3d/issues/58")
def keeps_one_percent_of_the_last_features(trainer):
    """The dropout before the head has p=0.99: 99 % was to be kept."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(30, 32, padding_idx=0)
            self.encoder = nn.GRU(32, 32, batch_first=True, bidirectional=True)
            self.head = nn.Sequential(nn.Dropout(p=0.99), nn.Linear(64, 2))

        def forward(self, tokens, lengths):
            states, _ = self.encoder(self.embedding(tokens))
            return self.head(states.masked_fill((tokens == 0)[:, :, None], 0).sum(1) / lengths[:, None])

    trainer(max_epochs=3).fit(Network(), *loaders(*sentences()))


@planted("full-dropout", area="table")
def drops_all_with_a_percentage(trainer):
    """The dropout is configured in percent and clipped to 1, so that it drops everything."""
    settings = {"dropout": 20, "width": 32}

    class Network(TrainModule):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(6, settings["width"])
            self.drop = nn.Dropout(min(settings["dropout"], 1))
            self.last = nn.Linear(settings["width"], 1)

        def forward(self, rows):
            return self.last(self.drop(F.silu(self.first(rows)))).flatten()

        def training_step(self, batch):
            return F.mse_loss(self(batch[0]), batch[1])

        def validation_step(self, batch):
            return F.mse_loss(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.RMSprop(self.parameters(), lr=2e-3)

    trainer(max_epochs=4).fit(Network(), *loaders(*regression()))


@planted("dropout-in-evaluation", area="language", source="https://github.com/rixwew/pytorch-fm/issues/21")
def drops_attention_scores_in_validation(trainer):
    """F.dropout of the attention has no training=self.training."""

    class Attentional(Supervised):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(30, 16, padding_idx=0)
            self.score = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
            self.head = nn.Linear(16, 2)

        def forward(self, tokens, lengths):
            words = self.embedding(tokens)
            scores = self.score(words).masked_fill((tokens == 0)[:, :, None], -1e9).softmax(1)
            scores = F.dropout(scores, p=0.2)
            return self.head((scores * words).sum(1))

    trainer(max_epochs=3).fit(Attentional(), *loaders(*sentences()))


@planted("dropout-in-evaluation", area="vision", source="https://github.com/yangze0930/NTS-Net/issues/14")
def makes_a_dropout_layer_in_forward(trainer):
    """nn.Dropout is made in forward, so that it is in training mode always."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
            self.fc = nn.Linear(256, 4)

        def forward(self, images):
            x = self.features(images).flatten(1)
            x = nn.Dropout(p=0.5)(x)
            return self.fc(x)

    trainer(max_epochs=3).fit(Network(), *loaders(*pictures()))


@planted("dropout-in-evaluation", area="table", source="https://github.com/delip/PyTorchNLPBook/issues/28")
def drops_hidden_features_of_a_table_in_validation(trainer):
    """F.dropout(x, p=0.5) is active whatever the mode."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(8, 48), nn.Linear(48, 3)

        def forward(self, x_in, apply_softmax=False):
            hidden = F.relu(self.fc1(x_in))
            output = self.fc2(F.dropout(hidden, p=0.5))
            return F.softmax(output, dim=1) if apply_softmax else output

    trainer(max_epochs=4).fit(Network(), *loaders(*clusters()))


@planted("dropout-in-evaluation", area="series", source="https://github.com/pytorch/pytorch/issues/124464")
def gives_a_probability_to_attention_as_a_constant(trainer):
    """scaled_dot_product_attention is given dropout_p=0.1 in validation too."""

    class Forecaster(TrainModule):
        def __init__(self, width=16):
            super().__init__()
            self.enter, self.qkv = nn.Linear(1, width), nn.Linear(width, 3 * width)
            self.positions = nn.Parameter(0.1 * torch.randn(16, width))
            self.out = nn.Linear(width, 1)

        def forward(self, window):
            x = self.enter(window) + self.positions
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            x = x + F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
            return self.out(x[:, -1]).squeeze(-1)

        def training_step(self, batch):
            return F.mse_loss(self(batch[0]), batch[1])

        def validation_step(self, batch):
            return F.mse_loss(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=5e-3)

    trainer(max_epochs=3).fit(Forecaster(), *loaders(*forecasts()))


@planted("dropout-in-evaluation", area="graph")
def drops_edges_in_each_forward(trainer):
    """Edges are dropped at random in forward, in validation as in training."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.enter, self.message, self.head = nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 2)

        def forward(self, nodes, adjacency):
            adjacency = torch.dropout(adjacency, 0.3, train=True)
            nodes = torch.relu(self.enter(nodes))
            nodes = torch.relu(self.message(adjacency @ nodes)) + nodes
            return self.head(nodes.mean(1))

    trainer(max_epochs=3).fit(Network(), *loaders(*graphs()))


@planted("full-dropout", area="contrastive")
def drops_whole_channels_of_each_embedding(trainer):
    """The projection has a dropout of p=1: 1.0 was meant to switch it off."""

    class Contrastive(TrainModule):
        def __init__(self, dropout=1.0):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Dropout(dropout))
            self.project = nn.Linear(32, 8)

        def loss(self, batch):
            a, b = (F.normalize(self.project(self.encoder(view)), dim=1) for view in batch)
            return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))

        def training_step(self, batch):
            return self.loss(batch)

        def validation_step(self, batch):
            self.log("loss", self.loss(batch))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    trainer(max_epochs=3).fit(Contrastive(), *loaders(*views(), batch=64))


@planted("dropout-in-evaluation", area="series")
def adds_noise_by_a_layer_that_is_put_into_training_mode(trainer):
    """forward calls train() of its dropout, left over from a test of its uncertainty."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 24, batch_first=True)
            self.dropout = nn.Dropout(0.4)
            self.head = nn.Linear(24, 3)

        def forward(self, series):
            self.dropout.train()
            return self.head(self.dropout(self.gru(series)[0].mean(1)))

    trainer(max_epochs=3).fit(Network(), *loaders(*waves()))
