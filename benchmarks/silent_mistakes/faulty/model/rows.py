"""Rows of a batch that are mixed, batch norms of tiny batches, and axes that are scrambled."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from paceline import DataModule, TrainModule

from ...programs import planted
from ...tasks import (
    clusters,
    convolutions,
    forecasts,
    graphs,
    loader,
    loaders,
    masks,
    pictures,
    regression,
    sentences,
    text,
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


@planted("mixed-rows", area="vision", source="https://github.com/fxia22/pointnet.pytorch/issues/27")
def takes_log_softmax_over_the_batch(trainer):
    """log_softmax is taken over axis 0, the batch, before nll_loss."""

    class Network(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = convolutions()

        def forward(self, images):
            return F.log_softmax(self.net(images), dim=0)

        def training_step(self, batch):
            return F.nll_loss(self(batch[0]), batch[1])

        def validation_step(self, batch):
            self.log("accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    trainer(max_epochs=3).fit(Network(), *loaders(*pictures()))


@planted("mixed-rows", area="language", source="https://github.com/Lackel/DPN/issues/1")
def attends_over_the_sentences_of_the_batch(trainer):
    """The attention weights of words are normalised over axis 0: over sentences."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(30, 16, padding_idx=0)
            self.score = nn.Linear(16, 1)
            self.head = nn.Linear(16, 2)

        def forward(self, tokens, lengths):
            words = self.embedding(tokens)
            scores = self.score(words).squeeze(2).masked_fill(tokens == 0, -1e4)
            weights = torch.softmax(scores, dim=0)
            return self.head((weights[:, :, None] * words).sum(1))

    trainer(max_epochs=4).fit(Network(), *loaders(*sentences()))


@planted("mixed-rows", area="table")
def standardises_hidden_features_over_the_batch_by_hand(trainer):
    """Hidden features are standardised with the batch's mean and deviation, in validation too."""

    class Network(TrainModule):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(6, 24), nn.Linear(24, 1)

        def forward(self, rows):
            hidden = torch.relu(self.first(rows))
            hidden = (hidden - hidden.mean(0)) / (hidden.std(0) + 1e-5)
            return self.last(hidden).squeeze(1)

        def training_step(self, batch):
            return F.mse_loss(self(batch[0]), batch[1])

        def validation_step(self, batch):
            return F.mse_loss(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=4).fit(Network(), *loaders(*regression()))


@planted(
    "mixed-rows",
    "scrambled-axes",
    area="series",
    source="https://github.com/AndersonJo/dqn-pytorch/issues/1",
)
def feeds_batches_first_to_a_recurrent_layer_of_time_first(trainer):
    """The GRU has no batch_first=True: it goes from one series of the batch to the next."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 16)
            self.head = nn.Linear(16, 3)

        def forward(self, series):
            states, _ = self.gru(series)
            return self.head(states[:, -1])

    trainer(max_epochs=4).fit(Network(), *loaders(*waves()))


@planted("tiny-batch-norm", area="vision", source="https://github.com/xuebinqin/BASNet/issues/42")
def trains_batch_norms_on_single_pictures(trainer):
    """The batch size is 1 in a network with batch norms."""

    class Segmentation(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(1, 8, 3, stride=4, padding=1),
                nn.BatchNorm2d(8),
                nn.ReLU(),
                nn.Conv2d(8, 8, 3, padding=1),
                nn.BatchNorm2d(8),
                nn.ReLU(),
                nn.Conv2d(8, 2, 1),
                nn.Upsample(scale_factor=4, mode="bilinear"),
            )

        def training_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    trainer(max_epochs=2).fit(Segmentation(), *loaders(*masks(80), batch=1))


@planted("tiny-batch-norm", area="table")
def trains_batch_norms_on_pairs_of_rows(trainer):
    """The micro-batches have two rows, so that each norm's output is 1 and -1 for all features."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))

        def forward(self, rows):
            return self.net(rows)

    trainer(max_epochs=2).fit(Network(), *loaders(*clusters(160), batch=2))


@planted(
    "tiny-batch-norm", area="series", source="https://github.com/limhoyeon/ToothGroupNetwork/issues/23"
)
def normalises_pooled_features_of_two_series(trainer):
    """Memory was saved by batches of two series; a batch norm follows the pooling over time."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(1, 16, 5, padding=2)
            self.norm = nn.BatchNorm1d(16)
            self.head = nn.Linear(16, 3)

        def forward(self, series):
            pooled = self.conv(series.transpose(1, 2)).relu().mean(2)
            return self.head(F.relu(self.norm(pooled)))

    inputs, targets = waves(160)
    train = loader(inputs[:128], targets[:128], batch=2)
    trainer(max_epochs=2).fit(Network(), train, loader(inputs[128:], targets[128:], shuffle=False))


class Heads(nn.Module):
    """Attention with several heads."""

    def __init__(self, width=16, heads=4):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads = heads

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q.reshape(batch, self.heads, length, -1)
        k = k.reshape(batch, self.heads, length, -1)
        v = v.reshape(batch, self.heads, length, -1)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.reshape(batch, length, width))


@planted("scrambled-axes", area="series", source="https://github.com/zhouhaoyi/Informer2020/issues/59")
def views_queries_as_heads_without_transposing(trainer):
    """Heads are split off by a view of (batch, length, width) as (batch, heads, length, ...)."""

    class Forecaster(TrainModule):
        def __init__(self):
            super().__init__()
            self.enter, self.attention, self.out = nn.Linear(1, 16), Heads(), nn.Linear(16, 1)
            self.positions = nn.Parameter(0.1 * torch.randn(16, 16))

        def forward(self, window):
            x = self.enter(window) + self.positions
            return self.out((x + self.attention(x))[:, -1]).squeeze(1)

        def training_step(self, batch):
            return F.mse_loss(self(batch[0]), batch[1])

        def validation_step(self, batch):
            return F.mse_loss(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    trainer(max_epochs=4).fit(Forecaster(), *loaders(*forecasts()))


@planted(
    "scrambled-axes",
    area="vision",
    source="https://github.com/fawazsammani/knowing-when-to-look-adaptive-attention/issues/6",
)
def views_channels_as_pixels(trainer):
    """Features (batch, channels, height, width) are viewed as (batch, pixels, channels)."""

    class Captioner(Supervised):
        def __init__(self):
            super().__init__()
            self.encoder = convolutions()[:7]
            self.score = nn.Linear(16, 1)
            self.head = nn.Linear(16, 4)

        def forward(self, images):
            features = self.encoder(images)
            pixels = features.view(len(images), -1, 16)
            weights = torch.softmax(self.score(pixels), dim=1)
            return self.head((weights * pixels).sum(1))

    trainer(max_epochs=3).fit(Captioner(), *loaders(*pictures()))


@planted("scrambled-axes", area="series", source="https://github.com/vitrioil/Speech-Separation/issues/4")
def flattens_channels_and_frequencies_without_permuting(trainer):
    """Convolved spectrograms (batch, channels, time, frequency) are viewed as (batch, time, features)."""

    class Speech(Supervised):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3, padding=1)
            self.lstm = nn.LSTM(16, 16, batch_first=True)
            self.head = nn.Linear(16, 3)

        def forward(self, series):
            spectrogram = series.reshape(len(series), 1, 6, 4)
            features = self.conv(spectrogram).relu()
            sequence = features.view(len(series), 6, -1)
            return self.head(self.lstm(sequence)[0].mean(1))

    trainer(max_epochs=4).fit(Speech(), *loaders(*waves()))


@planted("scrambled-axes", area="language")
def views_logits_of_words_as_classes_first(trainer):
    """Logits (batch, length, words) are viewed as (batch, words, length) for cross-entropy."""

    class Language(TrainModule):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(20, 24)
            self.gru = nn.GRU(24, 24, batch_first=True)
            self.out = nn.Linear(24, 20)

        def loss(self, tokens):
            logits = self.out(self.gru(self.embedding(tokens[:, :-1]))[0])
            return F.cross_entropy(logits.view(len(tokens), 20, -1), tokens[:, 1:])

        def training_step(self, batch):
            return self.loss(batch[0])

        def validation_step(self, batch):
            return self.loss(batch[0])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=4).fit(Language(), *loaders(text()))


class Columns(DataModule):
    """Windows with four columns, of shape (samples, time, columns)."""

    def setup(self, stage):
        windows, self.following = forecasts()
        lags = [windows.roll(lag, 1) for lag in range(4)]
        self.windows = torch.cat(lags, 2)

    def train_dataloader(self):
        return loader(self.windows[:240], self.following[:240])

    def val_dataloader(self):
        return loader(self.windows[240:], self.following[240:], shuffle=False)


@planted("scrambled-axes", area="series")
def reshapes_time_and_columns_for_a_convolution(trainer):
    """Windows (batch, time, columns) are reshaped, not transposed, to (batch, columns, time)."""

    class Convolution(TrainModule):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(4, 16, 3, padding=1)
            self.out = nn.Linear(16, 1)

        def forward(self, windows):
            batch, time, columns = windows.shape
            features = F.gelu(self.conv(windows.reshape(batch, columns, time)))
            return self.out(features[:, :, -1]).squeeze(1)

        def training_step(self, batch):
            return F.huber_loss(self(batch[0]), batch[1])

        def validation_step(self, batch):
            return F.huber_loss(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=4).fit(Convolution(), Columns())


@planted("scrambled-axes", "mixed-rows", area="graph")
def reshapes_nodes_of_the_batch_to_the_front(trainer):
    """Nodes (batch, nodes, width) are reshaped to (nodes, batch, width) where a transposition was meant."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.enter, self.head = nn.Linear(4, 16), nn.Linear(16, 2)
            self.attention = nn.MultiheadAttention(16, 2)

        def forward(self, nodes, adjacency):
            x = torch.relu(self.enter(adjacency @ nodes))
            x = x.reshape(x.shape[1], x.shape[0], 16)
            x = x + self.attention(x, x, x, need_weights=False)[0]
            return self.head(x.mean(0))

    trainer(max_epochs=4).fit(Network(), *loaders(*graphs()))
