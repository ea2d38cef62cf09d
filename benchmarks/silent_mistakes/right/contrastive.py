"""Embeddings learned by comparing samples: losses over the batch, pairs, classes not seen before."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from paceline import TrainModule

from ..programs import right
from ..tasks_right import accuracy, convolutions, loaders, only_training, pictures


def group_norm(channels):
    return nn.GroupNorm(4, channels)


def augmented(images):
    moved = torch.roll(images, tuple(torch.randint(-1, 2, (2,)).tolist()), (2, 3))
    return moved + 0.2 * torch.randn_like(images)


@right(area="contrastive", source="https://arxiv.org/abs/2002.05709")
def simclr_with_a_projection_thrown_away(trainer):
    """The projection is used in training only; each row of the loss depends on all others."""

    class SimCLR(TrainModule):
        def __init__(self, heat=0.2):
            super().__init__()
            self.encoder = convolutions(norm=group_norm)
            self.projection = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))

        def forward(self, images):
            return self.encoder(images)

        def training_step(self, batch):
            both = torch.cat([augmented(batch[0]), augmented(batch[0])])
            z = F.normalize(self.projection(self.encoder(both)), dim=1)
            similar = z @ z.T / self.hparams.heat
            similar.fill_diagonal_(-math.inf)
            n = len(batch[0])
            partner = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
            return F.cross_entropy(similar, partner)

        def validation_step(self, batch):
            images, labels = batch
            z = F.normalize(self(images), dim=1)
            near = (z @ z.T).fill_diagonal_(-1).argmax(1)
            self.log("nearest", (labels[near] == labels).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    images, labels = pictures(384, seed=40)
    trainer(max_epochs=4).fit(SimCLR(), *loaders(images, labels, batch=48))


@right(area="contrastive", source="https://arxiv.org/abs/2103.00020")
def clip_with_a_learned_temperature(trainer):
    """Targets are the rows' own numbers, the same in each batch; the temperature is one trained number."""

    class CLIP(TrainModule):
        def __init__(self):
            super().__init__()
            self.image = nn.Sequential(convolutions(), nn.Linear(32, 16))
            self.text = nn.EmbeddingBag(40, 16)
            self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

        def loss(self, batch):
            pictured = F.normalize(self.image(batch["image"]), dim=-1)
            written = F.normalize(self.text(batch["caption"]), dim=-1)
            logits = self.log_scale.exp().clamp(max=100) * pictured @ written.T
            targets = torch.arange(len(logits), device=logits.device)
            return (F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)) / 2

        def training_step(self, batch):
            self.log("scale", self.log_scale.detach().exp())
            return self.loss(batch)

        def validation_step(self, batch):
            self.log("loss", self.loss(batch))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    images, labels = pictures(256, classes=8, seed=41)
    words = torch.randint(8, 40, (256, 3), generator=torch.Generator().manual_seed(0))
    captions = torch.cat([labels[:, None], words], dim=1)
    samples = [{"image": i, "caption": c} for i, c in zip(images, captions, strict=True)]
    train = DataLoader(samples[:192], batch_size=16, shuffle=True, drop_last=True)
    trainer(max_epochs=4).fit(CLIP(), train, DataLoader(samples[192:], batch_size=16))


class Triplets(Dataset):
    """An anchor, a picture of its class and one of another class, drawn anew each time."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels
        self.members = [torch.nonzero(labels == label).flatten() for label in range(4)]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        own = int(self.labels[index])
        other = (own + 1 + int(torch.randint(3, ()))) % 4
        same, different = (
            rows[int(torch.randint(len(rows), ()))] for rows in (self.members[own], self.members[other])
        )
        return self.images[index], self.images[same], self.images[different]


@right(area="contrastive", source="https://arxiv.org/abs/1503.03832")
def triplets_of_one_shared_encoder(trainer):
    """One encoder has three roles, and the loss is 0 for triplets that are apart already."""

    class Siamese(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(convolutions(norm=group_norm), nn.Linear(32, 8))
            self.criterion = nn.TripletMarginLoss(margin=1.0)

        def training_step(self, batch):
            return self.criterion(*(self.encoder(images) for images in batch))

        def validation_step(self, batch):
            anchor, same, different = (self.encoder(images) for images in batch)
            near, far = (anchor - same).norm(dim=1), (anchor - different).norm(dim=1)
            self.log("accuracy", (near < far).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    images, labels = pictures(320, seed=42)
    train = DataLoader(Triplets(images[:240], labels[:240]), batch_size=24, shuffle=True)
    val = DataLoader(Triplets(images[240:], labels[240:]), batch_size=40)
    trainer(max_epochs=4).fit(Siamese(), train, val)


@right(area="contrastive", source="https://github.com/pytorch/examples/tree/main/siamese_network")
def pairs_are_the_same_class_or_not(trainer):
    """Both pictures of a pair go through the same layers; targets are (N, 1) as the outputs are."""

    class Pairs(TrainModule):
        def __init__(self):
            super().__init__()
            self.branch = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
            self.same = nn.Linear(16, 1)

        def forward(self, one, other):
            return self.same((self.branch(one) - self.branch(other)).abs())

        def training_step(self, batch):
            one, other, same = batch
            return F.binary_cross_entropy_with_logits(self(one, other), same)

        def validation_step(self, batch):
            one, other, same = batch
            self.log("accuracy", ((self(one, other) > 0) == (same > 0.5)).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    images, labels = pictures(640, classes=2, seed=43)
    same = (labels[:320] == labels[320:]).float()[:, None]
    trainer(max_epochs=6).fit(Pairs(), *loaders(images[:320], images[320:], same))


@right(
    area="contrastive",
    source="https://www.microsoft.com/en-us/research/publication/learning-to-rank-using-gradient-descent/",
)
def ranks_by_all_differences_within_a_batch(trainer):
    """An (N, 1) minus a (1, N) is wanted here: all pairs of the batch are compared."""

    class Ranker(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 1))

        def forward(self, images):
            return self.net(images).squeeze(-1)

        def training_step(self, batch):
            images, value = batch
            score = self(images)
            margin = score[:, None] - score[None, :]
            order = (value[:, None] - value[None, :]).sign()
            loss = F.softplus(-margin * order)
            return loss[order != 0].mean()

        def validation_step(self, batch):
            images, value = batch
            score = self(images)
            ordered = (score[:, None] - score) * (value[:, None] - value) > 0
            pairs = value[:, None] != value
            self.log("concordance", ordered[pairs].float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    images, _ = pictures(320, seed=44)
    value = images[:, 0, :4].mean((1, 2))
    trainer(max_epochs=4).fit(Ranker(), *loaders(images, value))


@right(area="contrastive", source="https://arxiv.org/abs/1703.05175")
def prototypes_of_classes_not_in_training(trainer):
    """Validation has classes that training never shows, as few-shot learning is judged."""

    class Prototypes(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(convolutions(norm=group_norm), nn.Linear(32, 16))

        def episode(self, batch):
            images, labels = batch
            half = len(images) // 2
            classes, places = labels.unique(return_inverse=True)
            z = self.encoder(images)
            support, query = z[:half], z[half:]
            member = F.one_hot(places[:half], len(classes)).float()
            centres = member.T @ support / member.sum(0).clamp(min=1)[:, None]
            return -torch.cdist(query, centres).square(), places[half:]

        def training_step(self, batch):
            return F.cross_entropy(*self.episode(batch))

        def validation_step(self, batch):
            self.log("accuracy", accuracy(*self.episode(batch)))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    images, labels = pictures(480, classes=8, seed=45)
    known = labels < 5
    train = DataLoader(
        TensorDataset(images[known], labels[known]), batch_size=40, shuffle=True, drop_last=True
    )
    val = DataLoader(TensorDataset(images[~known], labels[~known]), batch_size=60)
    trainer(max_epochs=4).fit(Prototypes(), train, val)


@right(area="contrastive", source="https://arxiv.org/abs/2103.03230")
def barlow_twins_correlates_columns(trainer):
    """Embeddings are standardised over the batch, and their products summed, neither by a norm layer."""

    class BarlowTwins(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                convolutions(), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16)
            )

        def training_step(self, batch):
            a, b = self.net(augmented(batch[0])), self.net(augmented(batch[0]))
            a, b = ((z - z.mean(0)) / (z.std(0) + 1e-4) for z in (a, b))
            c = a.T @ b / len(a)
            on = (c.diagonal() - 1).square().sum()
            off = (c - torch.diag(c.diagonal())).square().sum()
            return on + 0.01 * off

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    images, _ = pictures(384, seed=46)
    trainer(max_epochs=4).fit(BarlowTwins(), only_training(images, batch=64))


@right(area="contrastive", source="https://arxiv.org/abs/1801.07698")
def cosine_classifier_with_a_margin(trainer):
    """The last layer is a bare parameter, normalised in each step; validation is without the margin."""

    class ArcFace(TrainModule):
        def __init__(self, classes=4, margin=0.2, scale=16.0):
            super().__init__()
            self.encoder = nn.Sequential(convolutions(), nn.Linear(32, 16))
            self.centres = nn.Parameter(torch.randn(classes, 16))

        def cosines(self, images):
            return F.linear(F.normalize(self.encoder(images)), F.normalize(self.centres))

        def training_step(self, batch):
            images, labels = batch
            cosines = self.cosines(images).clamp(-1 + 1e-6, 1 - 1e-6)
            own = torch.cos(cosines.acos() + self.hparams.margin)
            one_hot = F.one_hot(labels, self.hparams.classes).bool()
            return F.cross_entropy(self.hparams.scale * torch.where(one_hot, own, cosines), labels)

        def validation_step(self, batch):
            cosines = self.cosines(batch[0])
            self.log("loss", F.cross_entropy(self.hparams.scale * cosines, batch[1]))
            self.log("accuracy", accuracy(cosines, batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    trainer(max_epochs=4).fit(ArcFace(), *loaders(*pictures(seed=47)))


@right(area="contrastive", source="https://arxiv.org/abs/2004.11362")
def supervised_contrast_then_a_probe(trainer):
    """A head for classes is unused in the first fit, frozen there, and trained alone in the second one."""

    class SupCon(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder = convolutions(norm=group_norm)
            self.head = nn.Linear(32, 4).requires_grad_(False)
            self.probing = False

        def probe(self):
            self.probing = True
            self.encoder.requires_grad_(False)
            self.head.requires_grad_(True)
            return self

        def contrast(self, images, labels):
            z = F.normalize(self.encoder(images), dim=1)
            itself = torch.eye(len(z), dtype=torch.bool)
            logits = (z @ z.T / 0.1).masked_fill(itself, -1e9)
            positive = (labels[:, None] == labels) & ~itself
            log_p = logits.log_softmax(1).masked_fill(~positive, 0.0)
            return -(log_p.sum(1) / positive.sum(1).clamp(min=1)).mean()

        def training_step(self, batch):
            images, labels = batch
            if self.probing:
                return F.cross_entropy(self.head(self.encoder(images)), labels)
            return self.contrast(images, labels)

        def validation_step(self, batch):
            if self.probing:
                self.log("accuracy", accuracy(self.head(self.encoder(batch[0])), batch[1]))
            else:
                self.log("contrast", self.contrast(*batch))

        def configure_optimizers(self):
            return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=3e-3)

    data = loaders(*pictures(seed=48))
    module = SupCon()
    trainer(max_epochs=3).fit(module, *data)
    trainer(max_epochs=3).fit(module.probe(), *data)
