"""Small trained parts on frozen or quantised networks; layers that begin alike or at zero, as meant."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from paceline import TrainModule

from ..programs import right
from ..tasks_right import accuracy, loaders, pictures, pretrained


class OnPretrained(TrainModule):
    """Classes of pictures by a pretrained backbone; subclasses say what of it is trained."""

    def __init__(self):
        super().__init__()
        self.backbone = pretrained()
        self.head = nn.Linear(32, 4)

    def forward(self, images):
        return self.head(self.backbone(images))

    def training_step(self, batch):
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch):
        scores = self(batch[0])
        self.log_dict({"loss": F.cross_entropy(scores, batch[1]), "accuracy": accuracy(scores, batch[1])})

    def configure_optimizers(self):
        return torch.optim.AdamW(
            [p for p in self.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0
        )


class LowRank(nn.Module):
    """A frozen layer plus a product of two small matrices, the second of which begins at zero."""

    def __init__(self, layer, rank=2, scale=2.0):
        super().__init__()
        self.layer, self.scale = layer.requires_grad_(False), scale
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.scale * self.up(self.down(x))


@right(area="transfer", source="https://arxiv.org/abs/2106.09685")
def low_rank_adapters_begin_at_zero(trainer):
    """Two linear layers follow each other without an activation, and one of them is zero at first."""

    class LoRA(OnPretrained):
        def __init__(self):
            super().__init__()
            self.backbone.requires_grad_(False)
            self.backbone[9] = LowRank(self.backbone[9])

        def train(self, mode=True):
            super().train(mode)
            for layer in self.backbone:
                if isinstance(layer, nn.BatchNorm2d):
                    layer.eval()
            return self

    trainer(max_epochs=4).fit(LoRA().train(), *loaders(*pictures(seed=60)))


class LowRankWeight(nn.Module):
    """The same as a parametrization of a weight."""

    def __init__(self, shape, rank=2):
        super().__init__()
        self.a = nn.Parameter(torch.randn(rank, shape[1]) / shape[1] ** 0.5)
        self.b = nn.Parameter(torch.zeros(shape[0], rank))

    def forward(self, weight):
        return weight + self.b @ self.a


@right(area="transfer", source="https://docs.pytorch.org/tutorials/intermediate/parametrizations.html")
def low_rank_adapters_as_parametrizations(trainer):
    """The original weight is frozen under a parametrization whose own parameters are trained."""

    class Parametrized(OnPretrained):
        def __init__(self):
            super().__init__()
            self.backbone.eval().requires_grad_(False)
            layer = self.backbone[9]
            parametrize.register_parametrization(layer, "weight", LowRankWeight(layer.weight.shape))

        def train(self, mode=True):
            super().train(mode)
            self.backbone.eval()
            return self

    trainer(max_epochs=4).fit(Parametrized(), *loaders(*pictures(seed=61)))


class Eighths(nn.Module):
    """A linear layer whose weights are kept as whole numbers in buffers."""

    def __init__(self, layer):
        super().__init__()
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("whole", (layer.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("bias", layer.bias.detach().clone())
        self.in_features, self.out_features = layer.in_features, layer.out_features

    def forward(self, x):
        return F.linear(x, self.whole * self.scale, self.bias)


@right(area="transfer", source="https://arxiv.org/abs/2305.14314")
def adapters_on_a_quantised_base(trainer):
    """The base has int8 buffers in place of a weight, which nothing trains; gradients pass through it."""

    class QLoRA(OnPretrained):
        def __init__(self):
            super().__init__()
            self.backbone.requires_grad_(False)
            self.backbone[9] = LowRank(Eighths(self.backbone[9]), rank=4)

        def on_train_epoch_start(self):
            self.backbone.eval()

    trainer(max_epochs=4).fit(QLoRA(), *loaders(*pictures(seed=62)))


@right(area="transfer", source="https://arxiv.org/abs/1902.00751")
def bottleneck_adapters_begin_as_the_identity(trainer):
    """Each adapter's last layer is zero; the two adapters are the only trained parts before the head."""

    class Adapter(nn.Module):
        def __init__(self, channels, inner=4):
            super().__init__()
            self.down, self.up = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)
            nn.init.zeros_(self.up.weight)
            nn.init.zeros_(self.up.bias)

        def forward(self, x):
            return x + self.up(F.gelu(self.down(x)))

    class Adapted(OnPretrained):
        def __init__(self):
            super().__init__()
            frozen = self.backbone.requires_grad_(False)
            self.backbone = nn.Sequential(*frozen[:4], Adapter(16), *frozen[4:7], Adapter(32), *frozen[7:])

        def train(self, mode=True):
            super().train(mode)
            for layer in self.modules():
                if isinstance(layer, nn.BatchNorm2d):
                    layer.eval()
            return self

    trainer(max_epochs=4).fit(Adapted().train(), *loaders(*pictures(seed=63)))


@right(area="transfer", source="https://arxiv.org/abs/2203.12119")
def prompts_for_a_frozen_transformer(trainer):
    """Only four tokens put before the patches and the head are trained; no layer that has inputs is."""

    class Patches(TrainModule):
        def __init__(self, classes=8):
            super().__init__()
            self.embed, self.places = nn.Linear(4, 32), nn.Parameter(0.5 * torch.randn(16, 32))
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(32, classes)

        def tokens(self, images):
            return self.embed(F.unfold(images, 2, stride=2).transpose(1, 2)) + self.places

        def forward(self, images):
            return self.head(self.encoder(self.tokens(images)).mean(1))

        def training_step(self, batch):
            return F.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch):
            self.log("accuracy", accuracy(self(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=3e-3)

    class Prompted(Patches):
        def __init__(self, base):
            super().__init__(classes=4)
            self.load_state_dict(
                {k: v for k, v in base.state_dict().items() if "head" not in k}, strict=False
            )
            self.requires_grad_(False)
            self.head.requires_grad_(True)
            self.prompts = nn.Parameter(0.1 * torch.randn(4, 32))

        def forward(self, images):
            tokens = self.tokens(images)
            prompts = self.prompts.expand(len(images), -1, -1)
            return self.head(self.encoder(torch.cat([prompts, tokens], 1))[:, 4:].mean(1))

    base = Patches()
    trainer(max_epochs=6).fit(base, *loaders(*pictures(384, classes=8, seed=64)))
    trainer(max_epochs=8).fit(Prompted(base), *loaders(*pictures(256, seed=65)))


@right(area="vision", source="https://arxiv.org/abs/2003.04887")
def residual_branches_begin_with_a_gate_of_zero(trainer):
    """The gate of each branch is 0 at first, so that the first step gives its layers no gradient."""

    class Gated(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            self.gate = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return x + self.gate * self.layers(x)

    class ReZero(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Flatten(), nn.Linear(64, 32), *(Gated(32) for _ in range(6)), nn.Linear(32, 4)
            )

        def training_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch):
            self.log("accuracy", accuracy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    trainer(max_epochs=4).fit(ReZero(), *loaders(*pictures(seed=66)))


@right(area="vision", source="https://arxiv.org/abs/1901.09321")
def fixup_zeroes_each_block_and_the_head(trainer):
    """The last layer of each block and the classifier's weights are zero: all scores are equal at first."""

    class Block(nn.Module):
        def __init__(self, channels, depth):
            super().__init__()
            self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
            nn.init.kaiming_normal_(self.one.weight)
            self.one.weight.data.mul_(depth**-0.5)
            nn.init.zeros_(self.two.weight)
            self.scale = nn.Parameter(torch.ones(1))
            self.biases = nn.Parameter(torch.zeros(4))

        def forward(self, x):
            h = torch.relu(self.one(x + self.biases[0]) + self.biases[1])
            return torch.relu(x + self.scale * self.two(h + self.biases[2]) + self.biases[3])

    class Fixup(TrainModule):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(1, 16, 3, padding=1)
            self.blocks = nn.Sequential(Block(16, 3), nn.MaxPool2d(2), Block(16, 3), Block(16, 3))
            self.head = nn.Linear(256, 4)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

        def forward(self, images):
            return self.head(self.blocks(torch.relu(self.stem(images))).flatten(1))

        def training_step(self, batch):
            return F.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch):
            self.log("accuracy", accuracy(self(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)

    trainer(max_epochs=4).fit(Fixup(), *loaders(*pictures(seed=67)))


@right(area="vision", source="https://arxiv.org/abs/2103.17239")
def branches_are_scaled_by_a_hundred_thousandth(trainer):
    """LayerScale: every channel of a branch begins with the same factor of 1e-5."""

    class Branch(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            self.gamma = nn.Parameter(torch.full((width,), 1e-5))

        def forward(self, x):
            return x + self.gamma * self.mix(self.norm(x))

    class CaiT(TrainModule):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(64, 24)
            self.branches = nn.ModuleList([Branch(24) for _ in range(3)])
            self.norm, self.last = nn.LayerNorm(24), nn.Linear(24, 4)

        def forward(self, images):
            x = self.first(images.flatten(1))
            for branch in self.branches:
                x = branch(x)
            return self.last(self.norm(x))

        def training_step(self, batch):
            images, labels = batch
            return F.cross_entropy(self(images), labels)

        def validation_step(self, batch):
            images, labels = batch
            self.log("accuracy", accuracy(self(images), labels))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    trainer(max_epochs=4).fit(CaiT(), *loaders(*pictures(seed=68)))


@right(area="transfer", source="https://arxiv.org/abs/2202.10054")
def probe_whose_weights_then_start_a_full_training(trainer):
    """The head is fitted in closed form beforehand, so that the first loss is low already."""

    class Started(OnPretrained):
        def solve(self, images, labels):
            self.eval()
            with torch.no_grad():
                features = self.backbone(images)
                given = torch.cat([features, torch.ones(len(features), 1)], 1)
                wanted = 4.0 * F.one_hot(labels, 4) - 1
                gram = given.T @ given + 10 * torch.eye(33)
                solution = torch.linalg.solve(gram, given.T @ wanted)
                self.head.weight.copy_(solution[:-1].T)
                self.head.bias.copy_(solution[-1])
            return self.train()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-4)

    images, labels = pictures(seed=69)
    train, val = loaders(images, labels)
    rows = train.dataset.indices
    trainer(max_epochs=3).fit(Started().solve(images[rows], labels[rows]), train, val)
