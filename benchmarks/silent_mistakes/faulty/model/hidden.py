"""Layers that the module does not know of, and layers that are new in each step."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from paceline import TrainModule

from ...programs import planted
from ...tasks import (
    backbone,
    clusters,
    graphs,
    loader,
    loaders,
    pictures,
    regression,
    sentences,
    views,
    waves,
)


class Classifier(TrainModule):
    """What the classifiers below share: cross-entropy of ``forward``, and its accuracy."""

    def training_step(self, batch):
        *inputs, targets = batch
        return F.cross_entropy(self(*inputs), targets)

    def validation_step(self, batch):
        *inputs, targets = batch
        logits = self(*inputs)
        self.log("loss", F.cross_entropy(logits, targets))
        self.log("accuracy", (logits.argmax(1) == targets).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


@planted("hidden-weights", area="table", source="https://github.com/pytorch/pytorch/issues/666")
def keeps_hidden_layers_in_a_list(trainer):
    """The hidden layers stand in a Python list, so that only the first and last layer are trained."""

    class Network(Classifier):
        def __init__(self, depth=3):
            super().__init__()
            self.first = nn.Linear(8, 16)
            self.hidden = [nn.Linear(16, 16) for _ in range(depth)]
            self.last = nn.Linear(16, 3)

        def forward(self, x):
            x = F.relu(self.first(x))
            for layer in self.hidden:
                x = F.relu(layer(x))
            return self.last(x)

    trainer(max_epochs=4).fit(Network(), *loaders(*clusters()))


@planted("hidden-weights", area="language", source="https://github.com/pytorch/pytorch/issues/1053")
def keeps_convolutions_of_three_widths_in_a_list(trainer):
    """The convolutions over words stand in a Python list, so that they keep their first weights."""

    class TextNetwork(Classifier):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(30, 12, padding_idx=0)
            self.convolutions = []
            for width in (2, 3, 4):
                self.convolutions.append(nn.Conv1d(12, 8, width, padding=width - 1))
            self.output = nn.Linear(24, 2)

        def forward(self, tokens, lengths):
            words = self.embedding(tokens).transpose(1, 2)
            found = [conv(words).relu().amax(2) for conv in self.convolutions]
            return self.output(torch.cat(found, 1))

    trainer(max_epochs=4).fit(TextNetwork(), *loaders(*sentences()))


@planted("hidden-weights", area="graph", source="https://github.com/pytorch/pytorch/issues/715")
def keeps_pairs_of_layer_and_activation_in_nested_lists(trainer):
    """Each layer of messages stands with its activation in a list of a list."""

    class GraphNetwork(Classifier):
        def __init__(self):
            super().__init__()
            self.enter = nn.Linear(4, 16)
            self.rounds = []
            for _ in range(2):
                self.rounds.append([nn.Linear(16, 16), nn.ELU()])
            self.classifier = nn.Linear(16, 2)

        def forward(self, nodes, adjacency):
            nodes = self.enter(nodes)
            for linear, activation in self.rounds:
                nodes = activation(linear(adjacency @ nodes))
            return self.classifier(nodes.mean(1))

    trainer(max_epochs=4).fit(GraphNetwork(), *loaders(*graphs()))


@planted("hidden-weights", area="series", source="https://github.com/asyml/texar-pytorch/issues/72")
def merges_branches_that_a_dict_holds(trainer):
    """The branches of a network for series stand in a plain dict by name."""

    class Merged(Classifier):
        def __init__(self):
            super().__init__()
            self.branches = {
                "short": nn.Conv1d(1, 8, 3, padding=1),
                "long": nn.Conv1d(1, 8, 9, padding=4),
            }
            self.head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))

        def forward(self, series):
            series = series.transpose(1, 2)
            features = [F.relu(branch(series)).amax(2) for branch in self.branches.values()]
            return self.head(torch.cat(features, dim=1))

    trainer(max_epochs=4).fit(Merged(), *loaders(*waves()))


@planted("hidden-weights", area="vision")
def learns_positions_in_a_plain_tensor(trainer):
    """The embedding of positions is a tensor with requires_grad, and no nn.Parameter."""

    class Patches(Classifier):
        def __init__(self):
            super().__init__()
            self.embed = nn.Conv2d(1, 16, 2, stride=2)
            self.positions = torch.randn(1, 16, 16, requires_grad=True)
            self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
            self.head = nn.Linear(16, 4)

        def forward(self, images):
            patches = self.embed(images).flatten(2).transpose(1, 2)
            return self.head(self.encoder(patches + self.positions).mean(1))

    trainer(max_epochs=3).fit(Patches(), *loaders(*pictures()))


class TwoTowers:
    """Encodes both views; a plain class."""

    def __init__(self, features, width):
        self.left = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, width))
        self.right = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, width))

    def __call__(self, a, b):
        return F.normalize(self.left(a), dim=1), F.normalize(self.right(b), dim=1)


@planted("hidden-weights", area="contrastive")
def puts_towers_into_a_class_that_is_no_module(trainer):
    """The towers' class does not inherit from nn.Module, so that only the temperature is trained."""

    class Contrastive(TrainModule):
        def __init__(self):
            super().__init__()
            self.towers = TwoTowers(12, 8)
            self.temperature = nn.Parameter(torch.tensor(2.0))

        def loss(self, batch):
            a, b = self.towers(*batch)
            return F.cross_entropy(a @ b.T * self.temperature.exp(), torch.arange(len(a)))

        def training_step(self, batch):
            return self.loss(batch)

        def validation_step(self, batch):
            self.log("loss", self.loss(batch))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    trainer(max_epochs=4).fit(Contrastive(), *loaders(*views()))


@planted("hidden-weights", area="transfer")
def hides_the_adapter_in_a_closure(trainer):
    """The adapter after a frozen network is a local variable of a function that the module keeps."""

    def adapted(features, width):
        down, up = nn.Linear(features, width), nn.Linear(width, features)
        return lambda x: x + up(F.gelu(down(x)))

    class Adapted(Classifier):
        def __init__(self):
            super().__init__()
            self.backbone = backbone().eval().requires_grad_(False)
            self.adapter = adapted(24, 8)
            self.head = nn.Linear(24, 4)

        def train(self, mode=True):
            super().train(mode)
            self.backbone.eval()
            return self

        def forward(self, images):
            return self.head(self.adapter(self.backbone(images)))

    trainer(max_epochs=3).fit(Adapted(), *loaders(*pictures()))


class Attention(nn.Module):
    """Attention with a residual connection, as a tutorial had it."""

    def __init__(self, width=16):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.width = width

    def forward(self, x, mask):
        scores = self.query(x) @ self.key(x).transpose(1, 2) / self.width**0.5
        context = scores.masked_fill(mask[:, None], -1e9).softmax(-1) @ self.value(x)
        output = nn.Linear(self.width, self.width)(context)
        return F.layer_norm(output + x, (self.width,))


@planted(
    "layer-made-in-forward", area="language", source="https://github.com/graykode/nlp-tutorial/issues/29"
)
def makes_the_output_projection_in_forward(trainer):
    """The last linear layer of the attention is made in forward, so that it is another one in each step."""

    class Transformer(Classifier):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(30, 16, padding_idx=0)
            self.attention = Attention()
            self.head = nn.Linear(16, 2)

        def forward(self, tokens, lengths):
            mask = tokens == 0
            words = self.attention(self.embedding(tokens), mask)
            return self.head(words.masked_fill(mask[:, :, None], 0).sum(1) / lengths[:, None])

    trainer(max_epochs=4).fit(Transformer(), *loaders(*sentences()))


@planted("layer-made-in-forward", area="contrastive")
def makes_the_projection_head_in_the_step(trainer):
    """The projection head of contrastive training is made in the training step."""

    class SimClr(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16))

        def training_step(self, batch):
            head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8))
            a, b = (F.normalize(head(self.encoder(view)), dim=1) for view in batch)
            targets = torch.arange(len(a))
            return F.cross_entropy(a @ b.T / 0.2, targets) + F.cross_entropy(b @ a.T / 0.2, targets)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    trainer(max_epochs=4).fit(SimClr(), loader(*views(), batch=64, drop_last=True))


class Houses(Dataset):
    """Rows with numbers and one category, as dicts."""

    def __init__(self, n):
        self.numbers, self.prices = regression(n)
        self.districts = (self.numbers[:, 3] > 0).long() + 2 * (self.numbers[:, 4] > 0).long()
        self.prices = self.prices + 0.5 * self.districts - 0.75

    def __len__(self):
        return len(self.prices)

    def __getitem__(self, row):
        return {"numbers": self.numbers[row], "district": self.districts[row], "price": self.prices[row]}


@planted("layer-made-in-forward", area="table")
def makes_the_embedding_of_a_category_in_forward(trainer):
    """The embedding of the districts is made anew for each batch."""

    class Prices(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 1))

        def forward(self, batch):
            district = nn.Embedding(4, 4)(batch["district"])
            return self.net(torch.cat([batch["numbers"], district], 1)).squeeze(1)

        def training_step(self, batch):
            return F.mse_loss(self(batch), batch["price"])

        def validation_step(self, batch):
            return F.mse_loss(self(batch), batch["price"])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    train, valid = torch.utils.data.random_split(Houses(320), [256, 64])
    trainer(max_epochs=4).fit(Prices(), DataLoader(train, 32, shuffle=True), DataLoader(valid, 64))


@planted("layer-made-in-forward", area="vision")
def draws_a_class_token_in_forward(trainer):
    """The class token of a small ViT is a parameter that forward makes, so that it is never learned."""

    class Vit(Classifier):
        def __init__(self):
            super().__init__()
            self.embed = nn.Conv2d(1, 16, 4, stride=4)
            self.positions = nn.Parameter(0.02 * torch.randn(1, 5, 16))
            self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
            self.head = nn.Linear(16, 4)

        def forward(self, images):
            patches = self.embed(images).flatten(2).transpose(1, 2)
            token = nn.Parameter(0.02 * torch.randn(1, 1, 16)).expand(len(images), -1, -1)
            return self.head(self.encoder(torch.cat([token, patches], 1) + self.positions)[:, 0])

    trainer(max_epochs=3).fit(Vit(), *loaders(*pictures()))


@planted("layer-made-in-forward", area="series")
def assigns_a_new_recurrent_layer_in_each_forward(trainer):
    """forward assigns self.rnn, so that the network that is in the optimizer is never used again."""

    class Recurrent(Classifier):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(1, 16, batch_first=True)
            self.head = nn.Linear(16, 3)

        def forward(self, series):
            self.rnn = nn.GRU(series.shape[2], 16, batch_first=True)
            output, _ = self.rnn(series)
            return self.head(output[:, -1])

    trainer(max_epochs=3).fit(Recurrent(), *loaders(*waves()))
