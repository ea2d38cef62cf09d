"""Parts that training never calls, and layers that stand in several places."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from paceline import TrainModule

from ...programs import planted
from ...tasks import clusters, graphs, loader, loaders, masks, pictures, regression, ring, sentences, waves


class Supervised(TrainModule):
    """Cross-entropy of ``forward`` in training and validation."""

    def training_step(self, batch):
        return F.cross_entropy(self(*batch[:-1]), batch[-1])

    def validation_step(self, batch):
        return F.cross_entropy(self(*batch[:-1]), batch[-1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-3)


@planted("unused-part", area="vision", source="https://github.com/inria-thoth/HySUPP/issues/3")
def never_calls_the_second_convolution(trainer):
    """forward goes from the first convolution to the third: the second was forgotten."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.layer1 = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
            self.layer2 = nn.Sequential(nn.Conv2d(12, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
            self.layer3 = nn.Sequential(nn.Conv2d(12, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
            self.head = nn.Linear(16, 4)

        def forward(self, x):
            x = self.layer1(x)
            x = self.layer3(x)
            return self.head(x.mean((2, 3)))

    trainer(max_epochs=3).fit(Network(), *loaders(*pictures()))


@planted("unused-part", area="table")
def trains_two_tasks_with_one_head(trainer):
    """The second task's output is computed by the first one's head, so that its own is never used."""

    class TwoTasks(TrainModule):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(6, 32), nn.Tanh())
            self.price_head = nn.Linear(32, 1)
            self.demand_head = nn.Linear(32, 1)

        def losses(self, batch):
            x, price, demand = batch
            features = self.trunk(x)
            price_loss = F.mse_loss(self.price_head(features).squeeze(1), price)
            demand_loss = F.mse_loss(self.price_head(features).squeeze(1), demand)
            return price_loss, demand_loss

        def training_step(self, batch):
            price_loss, demand_loss = self.losses(batch)
            self.log("price", price_loss)
            self.log("demand", demand_loss)
            return price_loss + demand_loss

        def validation_step(self, batch):
            self.log("loss", sum(self.losses(batch)))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    x, price = regression()
    demand = torch.tanh(x[:, 4] - 0.3 * price)
    trainer(max_epochs=4).fit(TwoTasks(), *loaders(x, price, demand))


@planted("unused-part", area="language")
def adds_no_positions_to_the_words(trainer):
    """The embedding of positions is made and never added."""

    class Encoder(Supervised):
        def __init__(self, width=16, length=12):
            super().__init__()
            self.words = nn.Embedding(30, width, padding_idx=0)
            self.positions = nn.Embedding(length, width)
            layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
            self.head = nn.Linear(width, 2)

        def forward(self, tokens, lengths):
            padding = tokens == 0
            hidden = self.encoder(self.words(tokens), src_key_padding_mask=padding)
            return self.head(hidden.masked_fill(padding[:, :, None], 0).sum(1) / lengths[:, None])

    trainer(max_epochs=3).fit(Encoder(), *loaders(*sentences()))


@planted("unused-part", area="diffusion")
def gives_the_denoiser_no_time(trainer):
    """The network of the time of diffusion is never called, so that all noise levels look the same."""

    class Denoiser(TrainModule):
        def __init__(self):
            super().__init__()
            self.time = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 32))
            self.enter = nn.Linear(2, 32)
            self.leave = nn.Sequential(nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 2))

        def forward(self, points, time):
            return self.leave(self.enter(points))

        def training_step(self, batch):
            (points,) = batch
            time = torch.rand(len(points), 1)
            noise = torch.randn_like(points)
            noised = (1 - time).sqrt() * points + time.sqrt() * noise
            return F.mse_loss(self(noised, time), noise)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    trainer(max_epochs=4).fit(Denoiser(), loader(ring(), batch=64))


class ResBlock(nn.Module):
    """A convolution with a norm and a residual connection."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x))) + x


@planted(
    "shared-weights",
    area="vision",
    source="https://github.com/deep-learning-with-pytorch/dlwpt-code/issues/89",
)
def multiplies_a_list_of_one_residual_block(trainer):
    """The list of one block is multiplied, so that all blocks are the same one."""

    class ResNet(Supervised):
        def __init__(self, blocks=4):
            super().__init__()
            self.conv = nn.Conv2d(1, 8, 3, padding=1)
            self.blocks = nn.Sequential(*(blocks * [ResBlock(8)]))
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            return self.head(self.blocks(self.conv(x).relu()).mean((2, 3)))

    trainer(max_epochs=3).fit(ResNet(), *loaders(*pictures()))


@planted("shared-weights", area="series", source="https://github.com/acids-ircam/ddsp_pytorch/issues/37")
def reads_pitch_and_loudness_with_the_same_layers(trainer):
    """Two input networks are made as ``[mlp] * 2``, so that pitch and loudness share their weights."""

    class Synth(TrainModule):
        def __init__(self):
            super().__init__()
            self.in_mlps = nn.ModuleList([nn.Sequential(nn.Linear(1, 16), nn.LeakyReLU())] * 2)
            self.gru = nn.GRU(32, 16, batch_first=True)
            self.out = nn.Linear(16, 1)

        def forward(self, pitch, loudness):
            hidden = torch.cat([self.in_mlps[0](pitch), self.in_mlps[1](loudness)], -1)
            return self.out(self.gru(hidden)[0])

        def training_step(self, batch):
            pitch, loudness, sound = batch
            return F.mse_loss(self(pitch, loudness), sound)

        def validation_step(self, batch):
            pitch, loudness, sound = batch
            return F.mse_loss(self(pitch, loudness), sound)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    pitch, _ = waves(200, 12)
    loudness, _ = waves(200, 12, seed=5)
    trainer(max_epochs=3).fit(Synth(), *loaders(pitch, loudness, torch.sin(pitch) * loudness))


@planted("shared-weights", area="graph")
def repeats_one_message_layer(trainer):
    """The rounds of messages are ``[layer for _ in range(3)]``: three names of one layer."""

    class Messages(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.own, self.others = nn.Linear(width, width), nn.Linear(width, width)

        def forward(self, nodes, adjacency):
            return torch.relu(self.own(nodes) + self.others(adjacency @ nodes))

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.enter = nn.Linear(4, 16)
            layer = Messages(16)
            self.rounds = nn.ModuleList([layer for _ in range(3)])
            self.head = nn.Linear(16, 2)

        def forward(self, nodes, adjacency):
            nodes = self.enter(nodes)
            for messages in self.rounds:
                nodes = messages(nodes, adjacency)
            return self.head(nodes.mean(1))

    trainer(max_epochs=3).fit(Network(), *loaders(*graphs()))


@planted("shared-weights", area="vision")
def reuses_one_batch_norm_after_each_convolution(trainer):
    """One batch norm is called after three convolutions, so that their statistics are mixed."""

    class Unet(Supervised):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
            self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
            self.conv3 = nn.Conv2d(8, 8, 3, padding=1)
            self.norm = nn.BatchNorm2d(8)
            self.head = nn.Conv2d(8, 2, 1)

        def forward(self, x):
            x = F.relu(self.norm(self.conv1(x)))
            x = F.relu(self.norm(self.conv2(x)))
            x = F.relu(self.norm(self.conv3(x)))
            return self.head(x)

    trainer(max_epochs=3).fit(Unet(), *loaders(*masks()))


@planted("shared-weights", area="table")
def gives_both_heads_the_same_layer(trainer):
    """The heads of two outputs are one object, assigned twice in one line."""

    class Multi(TrainModule):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(8, 24), nn.ReLU())
            self.kind_head = self.size_head = nn.Linear(24, 3)

        def loss(self, batch):
            rows, kind, size = batch
            features = self.trunk(rows)
            kind_loss = F.cross_entropy(self.kind_head(features), kind)
            return kind_loss + F.cross_entropy(self.size_head(features), size)

        def training_step(self, batch):
            return self.loss(batch)

        def validation_step(self, batch):
            return {"loss": self.loss(batch)}

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    rows, kind = clusters()
    size = torch.bucketize(rows[:, 0] + rows[:, 1], torch.tensor([-0.6, 0.6]))
    trainer(max_epochs=4).fit(Multi(), *loaders(rows, kind, size))
