"""Losses that are given probabilities where they expect logits, or the other way round."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from paceline import TrainModule

from ...programs import planted
from ...tasks import (
    clusters,
    convolutions,
    graphs,
    loader,
    loaders,
    masks,
    mlp,
    pictures,
    ring,
    sentences,
    several_labels,
    text,
    two_classes,
    waves,
)


@planted(
    "softmax-twice", area="table", source="https://github.com/Lightning-Universe/lightning-bolts/issues/654"
)
def regresses_with_a_softmax_before_cross_entropy(trainer):
    """forward of a logistic regression returns probabilities, and the step gives them to cross_entropy."""

    class LogisticRegression(TrainModule):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 3)

        def forward(self, x):
            return F.softmax(self.linear(x), dim=1)

        def training_step(self, batch):
            return F.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch):
            y_hat = self(batch[0])
            self.log("loss", F.cross_entropy(y_hat, batch[1]))
            self.log("accuracy", (y_hat.argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.03)

    trainer(max_epochs=4).fit(LogisticRegression(), *loaders(*clusters()))


@planted(
    "softmax-twice",
    area="series",
    source="https://github.com/jindongwang/Deep-learning-activity-recognition/issues/10",
)
def ends_activity_recognition_with_a_softmax_layer(trainer):
    """The network's last layer is nn.Softmax and the loss is nn.CrossEntropyLoss."""
    network = nn.Sequential(
        nn.Flatten(1),
        nn.Unflatten(1, (1, 24)),
        nn.Conv1d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.AdaptiveMaxPool1d(1),
        nn.Flatten(),
        nn.Linear(16, 3),
        nn.Softmax(dim=1),
    )
    optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    accuracy = {"accuracy": lambda outputs, targets: (outputs.argmax(1) == targets).float().mean()}
    module = TrainModule.of(network, nn.CrossEntropyLoss(), optimizer, metrics=accuracy)
    trainer(max_epochs=4).fit(module, *loaders(*waves()))


@planted(
    "softmax-twice",
    area="language",
    source="https://github.com/AnubhavGupta3377/Text-Classification-Models-Pytorch/issues/9",
)
def gives_probabilities_to_nll_loss(trainer):
    """The text classifier ends with softmax and its loss is NLLLoss, so that the loss is negative."""

    class Classifier(TrainModule):
        def __init__(self):
            super().__init__()
            self.embedding = nn.EmbeddingBag(30, 16, mode="mean", padding_idx=0)
            self.fc = mlp(16, 2)
            self.softmax = nn.Softmax(dim=1)
            self.loss_op = nn.NLLLoss()

        def forward(self, tokens):
            return self.softmax(self.fc(self.embedding(tokens)))

        def training_step(self, batch):
            tokens, _, label = batch
            return self.loss_op(self(tokens), label)

        def validation_step(self, batch):
            tokens, _, label = batch
            self.log("accuracy", (self(tokens).argmax(1) == label).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=4).fit(Classifier(), *loaders(*sentences()))


@planted(
    "softmax-twice",
    area="graph",
    source="https://github.com/yanx27/Pointnet_Pointnet2_pytorch/issues/30",
)
def gives_logits_to_nll_loss(trainer):
    """nll_loss is given the linear layer's output, which is no log-probability."""

    class PointNet(TrainModule):
        def __init__(self):
            super().__init__()
            self.point, self.classify = mlp(4, 16), mlp(16, 2)

        def forward(self, points):
            return self.classify(self.point(points).amax(1))

        def training_step(self, batch):
            points, _, label = batch
            return F.nll_loss(self(points), label)

        def validation_step(self, batch):
            points, _, label = batch
            self.log("accuracy", (self(points).argmax(1) == label).float().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.002)

    trainer(max_epochs=3).fit(PointNet(), *loaders(*graphs()))


@planted("softmax-twice", area="vision")
def segments_with_softmax_over_channels_before_the_loss(trainer):
    """The decoder of a segmentation ends with a softmax over channels, and cross_entropy follows."""

    class Segmentation(TrainModule):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
            self.head = nn.Conv2d(12, 2, 3, padding=1)

        def forward(self, images):
            return torch.softmax(self.head(self.body(images)), 1)

        def training_step(self, batch):
            images, truth = batch
            return nn.functional.cross_entropy(self(images), truth, weight=torch.tensor([0.4, 1.2]))

        def validation_step(self, batch):
            images, truth = batch
            self.log("accuracy", (self(images).argmax(1) == truth).float().mean())

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=5e-3)

    trainer(max_epochs=3).fit(Segmentation(), *loaders(*masks()))


@planted(
    "softmax-twice", area="language", source="https://github.com/bowang-lab/Transformer-GCN-QA/pull/32"
)
def scores_words_by_softmax_before_label_smoothing(trainer):
    """A language model's softmax is part of the network; the loss has label smoothing and its own."""

    class Language(TrainModule):
        def __init__(self):
            super().__init__()
            self.embedding, self.gru = nn.Embedding(20, 24), nn.GRU(24, 24, batch_first=True)
            self.project = nn.Sequential(nn.Linear(24, 20), nn.Softmax(-1))
            self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

        def loss(self, tokens):
            words = self.project(self.gru(self.embedding(tokens[:, :-1]))[0])
            return self.criterion(words.reshape(-1, 20), tokens[:, 1:].reshape(-1))

        def training_step(self, batch):
            return self.loss(batch[0])

        def validation_step(self, batch):
            return self.loss(batch[0])

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=5e-3)
            return {"optimizer": optimizer, "lr_scheduler": "cosine"}

    trainer(max_epochs=3).fit(Language(), *loaders(text()))


@planted("sigmoid-twice", area="table", source="https://github.com/yudi-mars/daisyRec/pull/15")
def recommends_with_a_sigmoid_before_bce_with_logits(trainer):
    """Scores go through a sigmoid in forward, and through another one in the loss."""

    class Recommender(TrainModule):
        def __init__(self):
            super().__init__()
            self.users, self.items = nn.Linear(4, 8), nn.Linear(4, 8)
            self.deep = mlp(16, 1)
            self.loss = nn.BCEWithLogitsLoss()

        def forward(self, rows):
            users, items = self.users(rows[:, :4]), self.items(rows[:, 4:])
            return torch.sigmoid(self.deep(torch.cat([users, items], 1))).view(-1)

        def training_step(self, batch):
            return self.loss(self(batch[0]), batch[1])

        def validation_step(self, batch):
            scores = self(batch[0])
            self.log("loss", self.loss(scores, batch[1]))
            self.log("accuracy", ((scores > 0.5) == (batch[1] > 0.5)).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=4).fit(Recommender(), *loaders(*two_classes()))


class FocalLoss(nn.Module):
    """Focal loss for two classes."""

    def __init__(self, alpha=0.5, gamma=2.0):
        super().__init__()
        self.alpha, self.gamma = alpha, gamma

    def forward(self, inputs, targets):
        probabilities = torch.sigmoid(inputs)
        loss = F.binary_cross_entropy_with_logits(probabilities, targets, reduction="none")
        p_t = probabilities * targets + (1 - probabilities) * (1 - targets)
        return (self.alpha * (1 - p_t) ** self.gamma * loss).mean()


@planted("sigmoid-twice", area="vision", source="https://github.com/itakurah/focal-loss-pytorch/pull/5")
def computes_a_focal_loss_of_probabilities(trainer):
    """A focal loss of one's own gives its probabilities to binary_cross_entropy_with_logits."""

    class Detector(TrainModule):
        def __init__(self):
            super().__init__()
            self.net, self.loss = convolutions(classes=4), FocalLoss()

        def training_step(self, batch):
            return self.loss(self.net(batch[0]), F.one_hot(batch[1], 4).float())

        def validation_step(self, batch):
            self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=3).fit(Detector(), *loaders(*pictures()))


@planted("sigmoid-twice", area="table", source="https://github.com/Turoad/lanedet/issues/32")
def ends_several_labels_with_a_sigmoid_layer(trainer):
    """The head for several labels has nn.Sigmoid, and the loss is BCEWithLogitsLoss with weights."""
    rows, labels = several_labels()
    network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4), nn.Sigmoid())
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.full((4,), 1.2))
    module = TrainModule.of(network, loss, partial(torch.optim.AdamW, lr=5e-3))
    trainer(max_epochs=4).fit(module, *loaders(rows, labels))


@planted("sigmoid-twice", area="gan")
def judges_samples_by_a_sigmoid_and_a_loss_of_logits(trainer):
    """The discriminator ends with a sigmoid, and both losses are of logits."""

    class Gan(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.generator = mlp(4, 2, hidden=32)
            self.discriminator = nn.Sequential(*mlp(2, 1, hidden=32), nn.Sigmoid())
            self.criterion = nn.BCEWithLogitsLoss()

        def configure_optimizers(self):
            parts = (self.generator, self.discriminator)
            return [torch.optim.Adam(part.parameters(), lr=1e-3, betas=(0.5, 0.999)) for part in parts]

        def training_step(self, batch):
            (real,) = batch
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            generator, discriminator = self.optimizers()
            fake = self.generator(torch.randn(len(real), 4))
            judged = self.discriminator(fake.detach())
            loss = self.criterion(self.discriminator(real), ones) + self.criterion(judged, zeros)
            discriminator.zero_grad()
            self.manual_backward(loss)
            discriminator.step()
            self.toggle_optimizer(generator)
            loss = self.criterion(self.discriminator(fake), ones)
            generator.zero_grad()
            self.manual_backward(loss)
            generator.step()
            self.untoggle_optimizer(generator)

    trainer(max_epochs=3).fit(Gan(), loader(ring(), batch=64))


@planted("cannot-overfit", area="vision")
def divides_cosines_by_the_scale_of_a_cosine_classifier(trainer):
    """Cosines to the class centres are divided by a scale of 30: all classes get about the same score."""

    class Network(TrainModule):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 16, 3, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(24))
            self.centres = nn.Parameter(torch.randn(4, 24))

        def forward(self, images):
            return F.normalize(self.body(images), dim=1) @ F.normalize(self.centres, dim=1).T / 30

        def training_step(self, batch):
            return F.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch):
            logits = self(batch[0])
            self.log("loss", F.cross_entropy(logits, batch[1]))
            self.log("accuracy", (logits.argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    images, labels = pictures()
    network = Network()
    network(images[:1])
    trainer(max_epochs=4).fit(network, *loaders(images, labels))
