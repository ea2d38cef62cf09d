"""Networks that lack an activation, or whose output does not fit the targets."""

from __future__ import annotations

import itertools
from functools import partial

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
    masks,
    pictures,
    regression,
    ring,
    sentences,
    two_classes,
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


class Regression(Supervised):
    """Squared error of ``forward``."""

    def training_step(self, batch):
        return F.mse_loss(self(batch[0]), batch[1])

    def validation_step(self, batch):
        return F.mse_loss(self(batch[0]), batch[1])


@planted(
    "missing-activation", area="transfer", source="https://github.com/nutonomy/nuscenes-devkit/issues/728"
)
def puts_two_linear_layers_after_a_backbone(trainer):
    """The head is two linear layers, and forward calls one after the other."""

    class Mtp(Supervised):
        def __init__(self):
            super().__init__()
            self.backbone = backbone()
            self.fc1 = nn.Linear(24, 64)
            self.fc2 = nn.Linear(64, 4)

        def forward(self, images):
            features = self.backbone(images)
            return self.fc2(self.fc1(features))

    trainer(max_epochs=3).fit(Mtp(), *loaders(*pictures()))


@planted("missing-activation", area="table", source="https://github.com/YujiaBao/ls/issues/1")
def builds_a_perceptron_without_activations(trainer):
    """A loop appends linear layers and dropouts, and no activation."""

    def perceptron(sizes, dropout=0.1):
        layers = []
        for inputs, outputs in itertools.pairwise(sizes[:-1]):
            layers += [nn.Linear(inputs, outputs), nn.Dropout(dropout)]
        return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]), nn.Flatten(0))

    rows, classes = two_classes()
    module = TrainModule.of(
        perceptron([8, 32, 32, 1]),
        F.binary_cross_entropy_with_logits,
        partial(torch.optim.AdamW, lr=5e-3),
        metrics={"accuracy": lambda logits, targets: ((logits > 0) == (targets > 0.5)).float().mean()},
    )
    trainer(max_epochs=4).fit(module, *loaders(rows, classes))


@planted(
    "missing-activation", area="vision", source="https://github.com/proceduralia/pytorch-conv2_1d/issues/2"
)
def convolves_in_space_and_then_in_time_without_relu(trainer):
    """A spatial convolution is followed at once by the one over time."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.space = nn.Conv2d(1, 12, (1, 3), padding=(0, 1))
            self.time = nn.Conv2d(12, 12, (3, 1), padding=(1, 0))
            self.head = nn.Linear(12, 4)

        def forward(self, clips):
            return self.head(F.relu(self.time(self.space(clips))).mean((2, 3)))

    trainer(max_epochs=3).fit(Network(), *loaders(*pictures()))


@planted(
    "unreachable-targets", area="table", source="https://github.com/jcjohnson/pytorch-examples/issues/30"
)
def ends_a_regression_with_a_relu(trainer):
    """Targets are above and below 0, and the output layer has a ReLU."""

    class Network(Regression):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1), nn.ReLU())

        def forward(self, rows):
            return self.net(rows).squeeze(1)

    trainer(max_epochs=4).fit(Network(), *loaders(*regression()))


@planted("unreachable-targets", "target-scale", area="series")
def ends_a_forecast_of_temperatures_with_a_sigmoid(trainer):
    """The forecast goes through a sigmoid, and temperatures are between 5 and 25."""

    class Network(Regression):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 16, batch_first=True)
            self.out = nn.Linear(16, 1)

        def forward(self, window):
            return torch.sigmoid(self.out(self.gru(window)[0][:, -1])).squeeze(1)

    windows, following = forecasts()
    trainer(max_epochs=3).fit(Network(), *loaders(windows, 15 + 4 * following))


@planted("unreachable-targets", area="gan")
def generates_points_outside_of_what_tanh_gives(trainer):
    """The generator ends with tanh, and the real points reach to 1.5."""

    class Gan(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2), nn.Tanh())
            self.critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

        def configure_optimizers(self):
            parts = (self.generator, self.critic)
            return [torch.optim.Adam(part.parameters(), lr=1e-3, betas=(0.5, 0.999)) for part in parts]

        def training_step(self, batch):
            real, ones, zeros = batch[0], torch.ones(len(batch[0]), 1), torch.zeros(len(batch[0]), 1)
            generator, critic = self.optimizers()
            fake = self.generator(torch.randn(len(real), 8))
            self.toggle_optimizer(critic)
            real_loss = F.binary_cross_entropy_with_logits(self.critic(real), ones)
            loss = real_loss + F.binary_cross_entropy_with_logits(self.critic(fake.detach()), zeros)
            critic.zero_grad()
            self.manual_backward(loss)
            critic.step()
            self.untoggle_optimizer(critic)
            self.toggle_optimizer(generator)
            loss = F.binary_cross_entropy_with_logits(self.critic(fake), ones)
            generator.zero_grad()
            self.manual_backward(loss)
            generator.step()
            self.untoggle_optimizer(generator)

    trainer(max_epochs=3).fit(Gan(), loader(1.2 * ring(), batch=64))


@planted(
    "unreachable-targets",
    area="diffusion",
    source="https://github.com/tsinghua-rll/VoxelNet-tensorflow/issues/10",
)
def predicts_noise_after_a_relu(trainer):
    """All layers of the denoiser are made by one function, with a ReLU, the last one too."""

    def layer(inputs, outputs):
        return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU())

    class Denoiser(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(layer(3, 48), layer(48, 48), layer(48, 2))

        def training_step(self, batch):
            time = torch.rand(len(batch[0]), 1)
            noise = torch.randn_like(batch[0])
            noised = (1 - time).sqrt() * batch[0] + time.sqrt() * noise
            return F.mse_loss(self.net(torch.cat([noised, time], 1)), noise)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    trainer(max_epochs=4).fit(Denoiser(), loader(ring(), batch=64))


@planted("frozen-output", area="transfer")
def freezes_the_head_and_trains_the_backbone(trainer):
    """The loop that freezes has its condition upside down: the new head is frozen, the rest is not."""

    class FineTuned(Supervised):
        def __init__(self):
            super().__init__()
            self.backbone = backbone()
            self.head = nn.Linear(24, 4)
            for name, parameter in self.named_parameters():
                if "head" in name:
                    parameter.requires_grad = False

        def forward(self, images):
            return self.head(self.backbone(images))

        def configure_optimizers(self):
            return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=1e-3)

    trainer(max_epochs=3).fit(FineTuned(), *loaders(*pictures()))


@planted("frozen-output", area="language")
def freezes_the_last_layers_instead_of_the_first(trainer):
    """``children()[-2:]`` are frozen where the first two were meant."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(30, 16, padding_idx=0)
            self.encoder = nn.GRU(16, 24, batch_first=True)
            self.hidden = nn.Linear(24, 24)
            self.output = nn.Linear(24, 2)
            for child in list(self.children())[-2:]:
                child.requires_grad_(False)

        def forward(self, tokens, lengths):
            states, _ = self.encoder(self.embedding(tokens))
            last = states[torch.arange(len(tokens)), lengths - 1]
            return self.output(torch.relu(self.hidden(last)))

        def configure_optimizers(self):
            return torch.optim.Adam(filter(lambda p: p.requires_grad, self.parameters()), lr=5e-3)

    trainer(max_epochs=3).fit(Network(), *loaders(*sentences()))


@planted("surplus-outputs", area="vision")
def keeps_a_thousand_classes_of_the_pretrained_network(trainer):
    """The output layer of 1000 classes is kept for data of four classes."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.net = convolutions(classes=1000)

        def forward(self, images):
            return self.net(images)

    trainer(max_epochs=3).fit(Network(), *loaders(*pictures()))


@planted(
    "surplus-outputs",
    area="graph",
    source="https://github.com/NRCan/geo-deep-learning/issues/98",
)
def adds_a_background_class_that_no_label_has(trainer):
    """The number of outputs is that of the classes plus one, and labels start at 0 without background."""

    class Network(Supervised):
        def __init__(self, num_classes=2):
            super().__init__()
            self.enter, self.head = nn.Linear(4, 16), nn.Linear(16, num_classes + 1)

        def forward(self, nodes, adjacency):
            return self.head(torch.relu(adjacency @ self.enter(nodes)).mean(1))

    trainer(max_epochs=3).fit(Network(), *loaders(*graphs()))


@planted("surplus-outputs", area="table")
def counts_columns_as_classes(trainer):
    """The output has as many classes as the table has columns."""
    rows, classes = clusters(features=12)

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(rows.shape[1], 24), nn.ReLU(), nn.Linear(24, rows.shape[1]))

        def forward(self, x):
            return self.net(x)

    trainer(max_epochs=4).fit(Network(), *loaders(rows, classes))


@planted("surplus-outputs", area="vision")
def segments_with_a_count_of_classes_that_is_off(trainer):
    """Two classes of pixels exist, and the decoder has five outputs, as another data set needs."""

    class Segmentation(Supervised):
        def __init__(self, classes=5):
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(1, 12, 3, padding=1),
                nn.BatchNorm2d(12),
                nn.ReLU(),
                nn.Conv2d(12, classes, 3, padding=1),
            )

        def forward(self, images):
            return self.net(images)

    trainer(max_epochs=3).fit(Segmentation(), *loaders(*masks()))
