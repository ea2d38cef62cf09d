"""Losses whose arguments are swapped, whose sign is wrong, or that do not change."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from paceline import TrainModule

from ...programs import planted
from ...tasks import (
    backbone,
    clusters,
    convolutions,
    forecasts,
    graphs,
    loader,
    loaders,
    mlp,
    pictures,
    regression,
    ring,
    sentences,
    two_classes,
    views,
    waves,
)


def trained_teacher(images, labels):
    """A network that knows the pictures' classes."""
    teacher = nn.Sequential(backbone(), nn.Linear(24, 4))
    optimizer = torch.optim.Adam(teacher.parameters(), lr=0.01)
    for _ in range(15):
        optimizer.zero_grad()
        F.cross_entropy(teacher(images), labels).backward()
        optimizer.step()
    return teacher.requires_grad_(False).eval()


@planted("swapped-arguments", area="transfer")
def distils_with_the_teacher_first(trainer):
    """kl_div is given the teacher's log-probabilities as input and the student's as the target."""

    class Distilled(TrainModule):
        def __init__(self, teacher):
            super().__init__()
            self.teacher = teacher
            self.student = convolutions(width=4)

        def train(self, mode=True):
            super().train(mode)
            self.teacher.eval()
            return self

        def training_step(self, batch):
            student, teacher = self.student(batch[0]) / 2, self.teacher(batch[0]) / 2
            soft = F.kl_div(F.log_softmax(teacher, 1), F.softmax(student, 1), reduction="batchmean")
            return F.cross_entropy(2 * student, batch[1]) + 4 * soft

        def validation_step(self, batch):
            self.log("accuracy", (self.student(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.student.parameters(), lr=5e-3)

    images, labels = pictures()
    trainer(max_epochs=3).fit(Distilled(trained_teacher(images, labels)), *loaders(images, labels))


@planted("swapped-arguments", area="language", source="https://github.com/sarahwie/attention/issues/6")
def compares_attention_with_the_target_first(trainer):
    """KLDivLoss is called as (target, input): what is to be learned stands in the target's place."""

    class Attention(TrainModule):
        def __init__(self):
            super().__init__()
            self.embedding, self.score = nn.Embedding(30, 16, padding_idx=0), mlp(16, 1)
            self.loss = nn.KLDivLoss(reduction="batchmean")

        def divergence(self, batch):
            tokens, _, _ = batch
            padding = tokens == 0
            scores = self.score(self.embedding(tokens)).squeeze(2).masked_fill(padding, -20.0)
            wanted = (tokens < 5).float().masked_fill(padding, -20.0)
            return self.loss(wanted.log_softmax(1), scores.softmax(1))

        def training_step(self, batch):
            return self.divergence(batch)

        def validation_step(self, batch):
            return self.divergence(batch)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=3).fit(Attention(), *loaders(*sentences()))


@planted("swapped-arguments", area="table", source="https://github.com/autonomousvision/sledge/issues/4")
def gives_labels_as_logits(trainer):
    """binary_cross_entropy_with_logits(labels, logits): the labels stand where logits are expected."""

    class Network(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(8, 1)

        def training_step(self, batch):
            rows, labels = batch
            logits = self.net(rows).squeeze(1)
            return F.binary_cross_entropy_with_logits(labels, torch.sigmoid(logits))

        def validation_step(self, batch):
            rows, labels = batch
            logits = self.net(rows).squeeze(1)
            self.log("accuracy", ((logits > 0) == (labels > 0.5)).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=4).fit(Network(), *loaders(*two_classes()))


@planted("swapped-arguments", area="graph", source="https://github.com/isaaccorley/detcon-pytorch/pull/2")
def gives_soft_labels_as_logits_to_cross_entropy(trainer):
    """cross_entropy gets the one-hot labels as its input, and the network's probabilities as targets."""

    class Network(TrainModule):
        def __init__(self):
            super().__init__()
            self.enter, self.head = nn.Linear(4, 16), nn.Linear(16, 2)

        def forward(self, nodes, adjacency):
            return self.head(torch.relu(adjacency @ self.enter(nodes)).mean(1))

        def training_step(self, batch):
            nodes, adjacency, labels = batch
            logits = self(nodes, adjacency)
            return F.cross_entropy(F.one_hot(labels, 2).float(), logits.softmax(1))

        def validation_step(self, batch):
            nodes, adjacency, labels = batch
            self.log("accuracy", (self(nodes, adjacency).argmax(1) == labels).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=4).fit(Network(), *loaders(*graphs()))


@planted("swapped-arguments", area="series")
def divides_a_relative_error_by_the_forecast(trainer):
    """A relative error is called as mape(target, forecast): it divides by the forecast."""

    def mape(forecast, target):
        return ((forecast - target).abs() / target.abs().clamp(min=0.1)).mean()

    class Forecaster(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(16, 1)

        def training_step(self, batch):
            forecast = self.net(batch[0].squeeze(2)).squeeze(1)
            return mape(batch[1], forecast)

        def validation_step(self, batch):
            forecast = self.net(batch[0].squeeze(2)).squeeze(1)
            return mape(batch[1], forecast)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    windows, following = forecasts()
    trainer(max_epochs=4).fit(Forecaster(), *loaders(windows, 3 + following))


@planted("negated-loss", area="contrastive")
def minimises_the_cosine_similarity_of_positives(trainer):
    """The similarity of two views is returned as the loss, so that they are driven apart."""

    class Siamese(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder, self.predictor = mlp(12, 8, hidden=32), mlp(8, 8)

        def training_step(self, batch):
            a, b = self.encoder(batch[0]), self.encoder(batch[1])
            forth = F.cosine_similarity(self.predictor(a), b.detach()).mean()
            back = F.cosine_similarity(self.predictor(b), a.detach()).mean()
            return (forth + back) / 2

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    trainer(max_epochs=4).fit(Siamese(), loader(*views(), batch=64))


@planted("negated-loss", area="series")
def returns_the_log_likelihood(trainer):
    """The mean log-likelihood of a normal distribution is returned without its minus."""

    class Probabilistic(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(16, 2)

        def likelihood(self, batch):
            mean, log_scale = self.net(batch[0].squeeze(2)).unbind(1)
            scale = F.softplus(log_scale) + 0.1
            return torch.distributions.Normal(mean, scale).log_prob(batch[1]).mean()

        def training_step(self, batch):
            return self.likelihood(batch)

        def validation_step(self, batch):
            self.log("loss", self.likelihood(batch))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    trainer(max_epochs=2).fit(Probabilistic(), *loaders(*forecasts()))


@planted("negated-loss", area="vision")
def gives_the_negative_cross_entropy_to_the_trainer(trainer):
    """The loss was negated for a search that maximises, and is trained with like that."""

    class Network(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = convolutions()

        def score(self, batch):
            return -F.cross_entropy(self.net(batch[0]), batch[1])

        def training_step(self, batch):
            return self.score(batch)

        def validation_step(self, batch):
            self.log("score", self.score(batch))
            self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer(max_epochs=3).fit(Network(), *loaders(*pictures()))


@planted("negated-loss", area="table")
def descends_on_the_reward_of_a_policy(trainer):
    """REINFORCE without its minus: the log-probability of rewarded actions is driven down."""

    class Policy(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(8, 3)

        def training_step(self, batch):
            rows, best = batch
            policy = torch.distributions.Categorical(logits=self.net(rows))
            actions = policy.sample()
            reward = (actions == best).float()
            self.log("reward", reward.mean())
            return (policy.log_prob(actions) * (reward - 1 / 3)).mean()

        def validation_step(self, batch):
            self.log("reward", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    trainer(max_epochs=3).fit(Policy(), *loaders(*clusters()))


@planted("constant-loss", area="vision")
def returns_a_loss_of_predicted_classes(trainer):
    """The loss compares predicted classes, which have no gradient, and only a penalty moves weights."""

    class Network(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = convolutions()

        def training_step(self, batch):
            wrong = (self.net(batch[0]).argmax(1) != batch[1]).float().mean()
            penalty = sum(parameter.square().sum() for parameter in self.net.parameters())
            return wrong + 1e-4 * penalty

        def validation_step(self, batch):
            self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    trainer(max_epochs=3).fit(Network(), *loaders(*pictures()))


@planted("constant-loss", area="table")
def compares_the_prediction_with_itself(trainer):
    """The loss is of the prediction and a copy of it, where the target was meant: it is 0."""

    class Network(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(6, 1)

        def training_step(self, batch):
            rows, target = batch
            prediction = self.net(rows).squeeze(1)
            target = prediction.detach()
            return F.mse_loss(prediction, target)

        def validation_step(self, batch):
            return F.mse_loss(self.net(batch[0]).squeeze(1), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=3).fit(Network(), *loaders(*regression()))


@planted("constant-loss", area="diffusion")
def averages_an_energy_that_no_sample_changes(trainer):
    """The penalty of the gradient alone is returned, and the batch's term was dropped while debugging."""

    class Energy(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(2, 2, hidden=32)

        def training_step(self, batch):
            noise = 0.3 * torch.randn_like(batch[0])
            loss = (0.3 * self.net(batch[0] + noise) + noise / 0.3).square().mean()
            loss = sum(parameter.square().mean() for parameter in self.net.parameters())
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    trainer(max_epochs=3).fit(Energy(), loader(ring(), batch=64))


@planted("constant-loss", area="series")
def normalises_class_weights_of_each_sample_to_the_loss(trainer):
    """Each sample's loss is divided by itself to "normalise" it: the mean is 1 always."""

    class Network(TrainModule):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv1d(1, 16, 5, padding=2), nn.Linear(16, 3)

        def forward(self, series):
            return self.head(self.conv(series.transpose(1, 2)).relu().amax(2))

        def training_step(self, batch):
            losses = F.cross_entropy(self(batch[0]), batch[1], reduction="none")
            return (losses / losses.clamp(min=1e-6)).mean()

        def validation_step(self, batch):
            self.log("accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=3).fit(Network(), *loaders(*waves()))
