"""Parts in the wrong mode in training, and norms of frozen parts that go on."""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F

from paceline import TrainModule
from paceline.callbacks import Callback

from ...programs import planted
from ...tasks import (
    backbone,
    clusters,
    convolutions,
    forecasts,
    loader,
    loaders,
    masks,
    pictures,
    sentences,
    text,
    views,
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


class Encoder(nn.Module):
    """A small language encoder with dropout, as a hub gives it: in eval mode."""

    def __init__(self, words=30, width=16):
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    @classmethod
    def from_pretrained(cls):
        return cls().eval()

    def forward(self, tokens):
        padding = tokens == 0
        hidden = self.layers(self.embedding(tokens), src_key_padding_mask=padding)
        return hidden.masked_fill(padding[:, :, None], 0).sum(1) / (~padding).sum(1, keepdim=True)


@planted(
    "eval-mode-in-training",
    area="language",
    source="https://github.com/autogluon/autogluon/issues/4965",
)
def fine_tunes_an_encoder_as_the_hub_gave_it(trainer):
    """A pretrained encoder comes in eval mode, and nobody calls train(): its dropout is off."""

    class FineTuned(Supervised):
        def __init__(self):
            super().__init__()
            self.encoder = Encoder.from_pretrained()
            self.head = nn.Linear(16, 2)

        def forward(self, tokens, lengths):
            return self.head(self.encoder(tokens))

    trainer(max_epochs=3).fit(FineTuned(), *loaders(*sentences()))


@planted("eval-mode-in-training", area="vision", source="https://github.com/tk-rusch/coRNN/issues/1")
def tests_in_eval_mode_before_each_epoch_and_stays_there(trainer):
    """A callback looks at some predictions in eval mode at the start of an epoch, without train()."""

    class Peek(Callback):
        def __init__(self, images):
            super().__init__()
            self.images = images

        def on_train_epoch_start(self, trainer):
            trainer.module.eval()
            with torch.no_grad():
                self.predictions = trainer.module(self.images).argmax(1)

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.net = convolutions()

        def forward(self, images):
            return self.net(images)

    images, labels = pictures()
    trainer(max_epochs=3, callbacks=[Peek(images[:8])]).fit(Network(), *loaders(images, labels))


@planted("eval-mode-in-training", area="language", source="https://github.com/joeynmt/joeynmt/issues/184")
def samples_in_the_middle_of_an_epoch(trainer):
    """The module writes a sample every five steps in eval mode, and trains the rest of the epoch in it."""

    class Language(TrainModule):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(20, 24)
            self.gru = nn.GRU(24, 24, batch_first=True)
            self.out = nn.Sequential(nn.Dropout(0.3), nn.Linear(24, 20))

        def forward(self, tokens):
            return self.out(self.gru(self.embedding(tokens))[0])

        @torch.no_grad()
        def sample(self, length=6):
            self.eval()
            tokens = torch.ones(1, 1, dtype=torch.long)
            for _ in range(length):
                tokens = torch.cat([tokens, self(tokens)[:, -1:].argmax(-1)], 1)
            return tokens

        def training_step(self, batch, batch_idx):
            tokens = batch[0]
            if batch_idx % 5 == 0:
                self.last_sample = self.sample()
            logits = self(tokens[:, :-1])
            return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=3).fit(Language(), loader(text(), batch=16))


@planted("eval-mode-in-training", area="contrastive")
def computes_positives_by_a_method_that_calls_eval(trainer):
    """embed() is written for evaluation, calls eval(), and the training step uses it too."""

    class Contrastive(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(
                nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 8)
            )

        def embed(self, rows):
            self.encoder.eval()
            return F.normalize(self.encoder(rows), dim=1)

        def training_step(self, batch):
            a, b = self.embed(batch[0]), self.embed(batch[1])
            return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))

        def validation_step(self, batch):
            a, b = self.embed(batch[0]), self.embed(batch[1])
            self.log("recall", ((a @ b.T).argmax(1) == torch.arange(len(a))).float().mean())

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    trainer(max_epochs=3).fit(Contrastive(), *loaders(*views(), batch=64))


@planted("eval-mode-in-training", area="transfer")
def thaws_a_backbone_that_train_keeps_in_eval_mode(trainer):
    """train() is overridden for the frozen backbone, and stays so when the backbone is trained."""

    class Staged(Supervised):
        def __init__(self):
            super().__init__()
            self.backbone = backbone().eval().requires_grad_(False)
            self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(24, 4))

        def on_train_epoch_start(self):
            self.backbone.requires_grad_(self.trainer.epoch > 0)

        def train(self, mode=True):
            super().train(mode)
            self.backbone.eval()
            return self

        def forward(self, images):
            return self.head(self.backbone(images))

    trainer(max_epochs=3).fit(Staged(), *loaders(*pictures()))


@contextmanager
def evaluating(module):
    """Eval mode for a while."""
    module.eval()
    yield


@planted("eval-mode-in-training", area="table")
def measures_the_training_accuracy_in_eval_mode(trainer):
    """Once an epoch the training accuracy is measured in a context that does not go back to train mode."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(8, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.3), nn.Linear(48, 3)
            )

        def forward(self, rows):
            return self.net(rows)

        def training_step(self, batch, batch_idx):
            rows, classes = batch
            if batch_idx == 0:
                with evaluating(self), torch.no_grad():
                    self.log("accuracy", (self(rows).argmax(1) == classes).float().mean())
            return F.cross_entropy(self(rows), classes)

    trainer(max_epochs=4).fit(Network(), *loaders(*clusters()))


@planted(
    "frozen-norms-move", area="transfer", source="https://github.com/isht7/pytorch-deeplab-resnet/issues/39"
)
def freezes_weights_and_not_the_norms(trainer):
    """The backbone's weights are frozen, and its batch norms take new statistics in each step."""

    class FineTuned(Supervised):
        def __init__(self):
            super().__init__()
            self.backbone = backbone()
            for parameter in self.backbone.parameters():
                parameter.requires_grad = False
            self.head = nn.Linear(24, 4)

        def forward(self, images):
            return self.head(self.backbone(images))

        def configure_optimizers(self):
            return torch.optim.Adam(self.head.parameters(), lr=5e-3)

    trainer(max_epochs=3).fit(FineTuned(), *loaders(*pictures()))


@planted(
    "frozen-norms-move", area="vision", source="https://github.com/speedinghzl/Pytorch-Deeplab/issues/17"
)
def calls_the_frozen_encoder_under_no_grad(trainer):
    """The encoder of a segmentation is called under no_grad, in training mode: its norms move."""

    class Segmentation(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder = backbone()[:3].requires_grad_(False)
            self.decoder = nn.Sequential(nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 2, 1))

        def forward(self, images):
            with torch.no_grad():
                features = self.encoder(images)
            return self.decoder(features)

        def training_step(self, batch):
            return F.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch):
            return F.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.decoder.parameters(), lr=5e-3)

    trainer(max_epochs=3).fit(Segmentation(), *loaders(*masks()))


@planted("frozen-norms-move", area="series")
def calls_eval_of_a_frozen_part_in_the_constructor(trainer):
    """The frozen part is in eval mode when it is made; a validation later puts it into training mode."""

    class Forecaster(TrainModule):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Conv1d(1, 12, 3, padding=1), nn.BatchNorm1d(12), nn.ReLU())
            self.features.requires_grad_(False).eval()
            self.out = nn.Linear(12, 1)

        def forward(self, window):
            return self.out(self.features(window.transpose(1, 2))[:, :, -1]).squeeze(1)

        def training_step(self, batch):
            return F.mse_loss(self(batch[0]), batch[1])

        def validation_step(self, batch):
            return F.mse_loss(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.out.parameters(), lr=0.02, momentum=0.9)

        def on_train_epoch_start(self):
            self.train()

    trainer(max_epochs=3).fit(Forecaster(), *loaders(*forecasts()))
