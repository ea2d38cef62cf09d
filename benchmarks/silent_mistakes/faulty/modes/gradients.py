"""Parts that get no gradient, and parts that were to be frozen and are not."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from paceline import TrainModule

from ...programs import planted
from ...tasks import (
    backbone,
    clusters,
    forecasts,
    graphs,
    loader,
    loaders,
    mlp,
    pictures,
    regression,
    ring,
    sentences,
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


class Extractor(nn.Module):
    """Keeps the features of a layer, by a hook."""

    def __init__(self, net, layer):
        super().__init__()
        self.net = net
        layer.register_forward_hook(self.keep)

    def keep(self, layer, inputs, output):
        self.features = output.clone().detach()

    def forward(self, images):
        self.net(images)
        return self.features


@planted("no-gradient", area="vision", source="https://github.com/lucidrains/CoCa-pytorch/issues/6")
def extracts_features_by_a_hook_that_detaches(trainer):
    """The hook that keeps an encoder's features detaches them, so that the encoder is never trained."""

    class Coca(Supervised):
        def __init__(self):
            super().__init__()
            net = nn.Sequential(nn.Conv2d(1, 12, 3, stride=2), nn.ReLU(), nn.Conv2d(12, 24, 3), nn.ReLU())
            self.encoder = Extractor(net, net[3])
            self.head = nn.Linear(24, 4)

        def forward(self, images):
            return self.head(self.encoder(images).mean((2, 3)))

    trainer(max_epochs=3).fit(Coca(), *loaders(*pictures()))


@planted("no-gradient", area="vision", source="https://github.com/LianpoWang/SLIIF/issues/14")
def stacks_outputs_by_way_of_numpy(trainer):
    """Outputs of several networks are collected as NumPy arrays and made a tensor again."""

    class Residuals(Supervised):
        def __init__(self):
            super().__init__()
            self.mlps = nn.ModuleList(mlp(64, 16, hidden=16) for _ in range(3))
            self.head = nn.Linear(48, 4)

        def forward(self, images):
            rows = images.flatten(1)
            results = [net(rows).cpu().detach().numpy() for net in self.mlps]
            return self.head(torch.cat([torch.tensor(result) for result in results], 1))

    trainer(max_epochs=3).fit(Residuals(), *loaders(*pictures()))


@planted("no-gradient", area="transfer")
def leaves_no_grad_around_a_backbone_that_is_to_be_trained(trainer):
    """The backbone is in the optimizer with a small rate, and called under no_grad as before."""

    class FineTuned(Supervised):
        def __init__(self):
            super().__init__()
            self.backbone = backbone()
            self.head = nn.Linear(24, 4)

        def forward(self, images):
            with torch.no_grad():
                features = self.backbone(images)
            return self.head(features)

        def configure_optimizers(self):
            groups = [
                {"params": self.backbone.parameters(), "lr": 1e-4},
                {"params": self.head.parameters(), "lr": 5e-3},
            ]
            return torch.optim.AdamW(groups)

    trainer(max_epochs=3).fit(FineTuned(), *loaders(*pictures()))


@planted("no-gradient", area="gan", source="https://github.com/dragen1860/IntroVAE-Pytorch/issues/3")
def detaches_what_the_generator_is_trained_by(trainer):
    """The generator's loss is computed from a sample that is detached, so that it gets no gradient."""

    class Gan(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.generator, self.critic = mlp(4, 2, hidden=32), mlp(2, 1, hidden=32)

        def configure_optimizers(self):
            return [torch.optim.Adam(part.parameters(), lr=1e-3) for part in (self.generator, self.critic)]

        def training_step(self, batch):
            (real,) = batch
            generator, critic = self.optimizers()
            fake = self.generator(torch.randn(len(real), 4)).detach()
            loss = F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(fake)).mean()
            critic.zero_grad()
            self.manual_backward(loss)
            critic.step()
            loss = F.softplus(-self.critic(fake)).mean()
            self.log("generator", loss)
            generator.zero_grad()
            self.manual_backward(loss)
            generator.step()

    trainer(max_epochs=3).fit(Gan(), loader(ring(), batch=64))


@planted("no-gradient", area="series", source="https://github.com/kengz/SLM-Lab/pull/133")
def collects_states_by_torch_tensor(trainer):
    """States of a cell are collected in a list and made a new tensor by torch.tensor."""

    class Forecaster(TrainModule):
        def __init__(self):
            super().__init__()
            self.cell = nn.RNNCell(1, 12)
            self.out = nn.Linear(12, 1)

        def forward(self, window):
            state, states = torch.zeros(len(window), 12), []
            for value in window.unbind(1):
                state = self.cell(value, state)
                states.append(state.tolist())
            return self.out(torch.tensor(states[-1])).squeeze(1)

        def training_step(self, batch):
            return F.mse_loss(self(batch[0]), batch[1])

        def validation_step(self, batch):
            return F.mse_loss(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=2).fit(Forecaster(), *loaders(*forecasts()))


@planted("no-gradient", area="language")
def chooses_words_by_a_hard_argmax(trainer):
    """Each word's weight is 1 or 0 by a comparison, which has no gradient for the selector."""

    class Selective(Supervised):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(30, 16, padding_idx=0)
            self.selector = nn.Linear(16, 1)
            self.head = nn.Linear(16, 2)

        def forward(self, tokens, lengths):
            words = self.embedding(tokens)
            kept = (torch.sigmoid(self.selector(words)) > 0.5).float()
            return self.head((kept * words).sum(1) / lengths[:, None])

    trainer(max_epochs=3).fit(Selective(), *loaders(*sentences()))


@planted("no-gradient", area="graph")
def reads_the_data_of_node_features(trainer):
    """The rounds of messages go on with .data of the nodes, so that the first layers stay."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.enter, self.message = nn.Linear(4, 16), nn.Linear(16, 16)
            self.head = nn.Linear(16, 2)

        def forward(self, nodes, adjacency):
            state = torch.relu(self.enter(nodes)).data
            state = state + torch.relu(self.message(adjacency @ state))
            return self.head(state.mean(1))

    trainer(max_epochs=3).fit(Network(), *loaders(*graphs()))


@planted("no-gradient", area="table")
def decorates_the_encoder_with_inference_of_evaluation(trainer):
    """encode() has the decorator torch.no_grad() from its use in evaluation."""

    class Autoencoder(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = mlp(6, 3), mlp(3, 6)

        @torch.no_grad()
        def encode(self, rows):
            return self.encoder(rows)

        def training_step(self, batch):
            return F.mse_loss(self.decoder(self.encode(batch[0])), batch[0])

        def validation_step(self, batch):
            return F.mse_loss(self.decoder(self.encode(batch[0])), batch[0])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=3).fit(Autoencoder(), *loaders(*regression()))


def pretrained_layers():
    """The convolutions of a pretrained network, without its norms."""
    first, _, _, pool, second, *_ = backbone()
    return first, nn.ReLU(), pool, second, nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten()


@planted(
    "requires-grad-on-module", area="transfer", source="https://github.com/catalyst-team/catalyst/pull/81"
)
def sets_requires_grad_of_the_backbone(trainer):
    """``backbone.requires_grad = False`` sets an attribute, and the whole network is trained."""

    class FineTuned(Supervised):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(*pretrained_layers())
            self.backbone.requires_grad = False
            self.head = nn.Linear(24, 4)

        def forward(self, images):
            return self.head(self.backbone(images))

    trainer(max_epochs=3).fit(FineTuned(), *loaders(*pictures()))


@planted("requires-grad-on-module", area="language")
def sets_requires_grad_of_an_embedding(trainer):
    """Word vectors that were to stay are frozen by an attribute of the layer."""

    class Network(Supervised):
        def __init__(self, vectors):
            super().__init__()
            self.embedding = nn.Embedding.from_pretrained(vectors, freeze=False, padding_idx=0)
            self.embedding.requires_grad = False
            self.gru = nn.GRU(16, 16, batch_first=True)
            self.head = nn.Linear(16, 2)

        def forward(self, tokens, lengths):
            states, _ = self.gru(self.embedding(tokens))
            return self.head(states[torch.arange(len(tokens)), lengths - 1])

    vectors = 0.5 * torch.randn(30, 16)
    trainer(max_epochs=3).fit(Network(vectors), *loaders(*sentences()))


@planted("requires-grad-on-module", area="table")
def freezes_layers_of_a_loop_over_children(trainer):
    """A loop over the first layers sets requires_grad of the layers, not of their parameters."""

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3)
            )
            for layer in self.net[:3]:
                layer.requires_grad = False

        def forward(self, rows):
            return self.net(rows)

    trainer(max_epochs=3).fit(Network(), *loaders(*clusters()))


@planted("requires-grad-on-module", area="contrastive")
def leaves_the_image_tower_unfrozen(trainer):
    """The image tower of locked-image tuning is "locked" by an attribute."""

    class Locked(TrainModule):
        def __init__(self):
            super().__init__()
            self.image, self.text = mlp(12, 8, hidden=32), mlp(12, 8, hidden=32)
            self.image.requires_grad = False

        def training_step(self, batch):
            image, text = F.normalize(self.image(batch[0]), dim=1), F.normalize(self.text(batch[1]), dim=1)
            return F.cross_entropy(text @ image.T / 0.1, torch.arange(len(text)))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    trainer(max_epochs=3).fit(Locked(), loader(*views(), batch=64, drop_last=True))
