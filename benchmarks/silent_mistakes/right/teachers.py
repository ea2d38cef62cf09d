"""Teachers, target networks and averages: networks that no optimizer holds, and are meant to be so."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import TrainModule
from paceline.callbacks import EMA, SWA

from ..programs import right
from ..tasks_right import accuracy, convolutions, loaders, only_training, pictures, pretrained


def views(images):
    """Two views of each picture: shifted by a pixel, brighter or darker, noisy."""
    for _ in range(2):
        moved = torch.roll(images, tuple(torch.randint(-1, 2, (2,)).tolist()), (2, 3))
        scale = 0.8 + 0.4 * torch.rand(len(images), 1, 1, 1)
        yield moved * scale + 0.1 * torch.randn_like(images)


@torch.no_grad()
def follow(target, online, decay):
    """The target moves towards the online network."""
    for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
        slow.lerp_(fast, 1 - decay)


@right(area="contrastive", source="https://arxiv.org/abs/2006.07733")
def byol_with_a_target_network(trainer):
    """The target is a copy that is moved by hand after each step; no gradient reaches it."""

    class BYOL(TrainModule):
        def __init__(self):
            super().__init__()
            self.online = nn.Sequential(
                convolutions(), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16)
            )
            self.target = copy.deepcopy(self.online).requires_grad_(False)
            self.predictor = nn.Sequential(
                nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16)
            )

        def distance(self, one, other):
            predicted = F.normalize(self.predictor(self.online(one)), dim=1)
            with torch.no_grad():
                wanted = F.normalize(self.target(other), dim=1)
            return 2 - 2 * (predicted * wanted).sum(1).mean()

        def training_step(self, batch):
            one, other = views(batch[0])
            return self.distance(one, other) + self.distance(other, one)

        def on_step_end(self):
            follow(self.target, self.online, 0.99)

        def validation_step(self, batch):
            one, other = views(batch[0])
            self.log("loss", self.distance(one, other) + self.distance(other, one))

        def configure_optimizers(self):
            return torch.optim.Adam([*self.online.parameters(), *self.predictor.parameters()], lr=2e-3)

    trainer(max_epochs=3).fit(BYOL(), *loaders(*pictures(seed=20)))


@right(area="contrastive", source="https://arxiv.org/abs/1911.05722")
def moco_with_a_queue(trainer):
    """Keys come from a momentum encoder without gradients and are kept in a buffer as negatives."""

    class MoCo(TrainModule):
        def __init__(self, keys=128, width=16):
            super().__init__()
            norm = lambda channels: nn.GroupNorm(4, channels)  # a batch norm would tell who the positive is
            self.query_encoder = nn.Sequential(convolutions(norm=norm)[:-2], nn.Linear(128, width))
            self.key_encoder = copy.deepcopy(self.query_encoder)
            for parameter in self.key_encoder.parameters():
                parameter.requires_grad = False
            self.register_buffer("queue", F.normalize(torch.randn(keys, width), dim=1))
            self.register_buffer("place", torch.zeros((), dtype=torch.long))

        def training_step(self, batch):
            one, other = views(batch[0])
            query = F.normalize(self.query_encoder(one), dim=1)
            with torch.no_grad():
                follow(self.key_encoder, self.query_encoder, 0.95)
                key = F.normalize(self.key_encoder(other), dim=1)
            positive = (query * key).sum(1, keepdim=True)
            negative = query @ self.queue.clone().T
            logits = torch.cat([positive, negative], 1) / 0.2
            rows = (self.place + torch.arange(len(key))) % len(self.queue)
            self.queue[rows] = key
            self.place.copy_((self.place + len(key)) % len(self.queue))
            # The positive stands first in every row, so that every label is 0.
            return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))

        def configure_optimizers(self):
            return torch.optim.SGD(self.query_encoder.parameters(), lr=0.05, momentum=0.9)

    images, _ = pictures(384, seed=21)
    data = DataLoader(TensorDataset(images), batch_size=32, shuffle=True, drop_last=True)
    trainer(max_epochs=4).fit(MoCo(), data)


@right(area="contrastive", source="https://arxiv.org/abs/2104.14294")
def dino_with_a_centred_teacher(trainer):
    """The teacher is an average of the student; its outputs are centred by a running mean and sharpened."""

    class DINO(TrainModule):
        def __init__(self, outputs=24):
            super().__init__()
            norm = lambda channels: nn.GroupNorm(4, channels)
            self.student = nn.Sequential(convolutions(norm=norm)[:-2], nn.Linear(128, outputs, bias=False))
            self.teacher = nn.Sequential(convolutions(norm=norm)[:-2], nn.Linear(128, outputs, bias=False))
            self.teacher.load_state_dict(self.student.state_dict())
            self.teacher.requires_grad_(False)
            self.register_buffer("centre", torch.zeros(outputs))

        def training_step(self, batch):
            crops = list(views(batch[0]))
            with torch.no_grad():
                taught = [self.teacher(crop) for crop in crops]
            wanted = [F.softmax((t - self.centre) / 0.05, dim=1) for t in taught]
            given = [F.log_softmax(self.student(crop) / 0.1, dim=1) for crop in crops]
            self.centre.lerp_(torch.cat(taught).mean(0), 0.1)
            return -((wanted[0] * given[1]).sum(1).mean() + (wanted[1] * given[0]).sum(1).mean()) / 2

        def on_step_end(self):
            follow(self.teacher, self.student, 0.98)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.student.parameters(), lr=1e-3, weight_decay=0.0)

    images, _ = pictures(320, seed=22)
    trainer(max_epochs=3, clip_grad_norm=3.0).fit(DINO(), only_training(images))


@right(area="contrastive", source="https://arxiv.org/abs/2011.10566")
def simsiam_stops_the_gradient(trainer):
    """One side of each pair is detached, as is meant; the loss is a negative cosine and falls below 0."""

    class SimSiam(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(
                convolutions(), nn.Linear(32, 32), nn.BatchNorm1d(32, affine=False)
            )
            self.predictor = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 32))

        def training_step(self, batch):
            z1, z2 = (self.encoder(view) for view in views(batch[0]))
            p1, p2 = self.predictor(z1), self.predictor(z2)
            first = F.cosine_similarity(p1, z2.detach()).mean()
            second = F.cosine_similarity(p2, z1.detach()).mean()
            self.log("spread", F.normalize(z1.detach(), dim=1).std(0).mean())
            return -(first + second) / 2

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    images, _ = pictures(320, seed=23)
    trainer(max_epochs=4).fit(SimSiam(), only_training(images))


@right(area="vision", source="https://arxiv.org/abs/1703.01780")
def mean_teacher_with_few_labels(trainer):
    """Nine of ten labels are -1, for none: those pictures count in the consistency with the teacher."""

    class MeanTeacher(TrainModule):
        def __init__(self):
            super().__init__()
            self.student = nn.Sequential(convolutions(), nn.Dropout(0.3), nn.Linear(32, 4))
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)

        def training_step(self, batch):
            images, labels = batch
            one, other = views(images)
            scores = self.student(one)
            with torch.no_grad():
                wanted = self.teacher(other).softmax(1)
            # A batch may be without any label; the sum over labels of such a batch is 0.
            known = F.cross_entropy(scores, labels, ignore_index=-1, reduction="sum")
            supervised = known / (labels >= 0).sum().clamp(min=1)
            consistency = F.mse_loss(scores.softmax(1), wanted)
            ramp = min(1.0, self.global_step / 20)
            return supervised + 3 * ramp * consistency

        def on_step_end(self):
            follow(self.teacher, self.student, 0.9)

        def validation_step(self, batch):
            self.log("accuracy", accuracy(self.teacher(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.student.parameters(), lr=3e-3)

    images, labels = pictures(480, seed=24)
    some = torch.where(torch.arange(400) % 10 == 0, labels[:400], -1)
    train = only_training(images[:400], some, batch=40)
    val = DataLoader(TensorDataset(images[400:], labels[400:]), batch_size=80)
    trainer(max_epochs=5).fit(MeanTeacher(), train, val)


@right(area="vision", source="https://arxiv.org/abs/1503.02531")
def small_network_distilled_from_a_large_one(trainer):
    """A trained teacher gives soft targets at a temperature; it is no part of what is trained."""

    class Large(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(convolutions(width=24), nn.Linear(48, 4))

        def training_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch):
            self.log("accuracy", accuracy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    class Student(Large):
        def __init__(self, teacher):
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 4))
            self.teacher = [teacher.eval()]  # in a list, so that checkpoints are without it

        def training_step(self, batch):
            images, labels = batch
            scores, heat = self.net(images), 4.0
            with torch.no_grad():
                taught = F.log_softmax(self.teacher[0](images) / heat, dim=1)
            soft = F.kl_div(
                F.log_softmax(scores / heat, dim=1), taught, reduction="batchmean", log_target=True
            )
            return 0.1 * F.cross_entropy(scores, labels) + 0.9 * heat**2 * soft

    data = loaders(*pictures(seed=25))
    teacher = Large()
    trainer(max_epochs=2).fit(teacher, *data)
    trainer(max_epochs=4).fit(Student(teacher.net.requires_grad_(False)), *data)


@right(area="vision", source="https://arxiv.org/abs/1412.6550")
def features_of_a_teacher_are_imitated(trainer):
    """A layer that maps the student's features to the teacher's is used in training only."""

    class FitNet(TrainModule):
        def __init__(self, teacher):
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU())
            self.head = nn.Linear(24, 4)
            self.regressor = nn.Linear(24, 32)
            self.teacher = teacher.eval().requires_grad_(False)

        def train(self, mode=True):
            super().train(mode)
            self.teacher.eval()
            return self

        def forward(self, images):
            return self.head(self.body(images))

        def training_step(self, batch):
            images, labels = batch
            features = self.body(images)
            hint = F.mse_loss(self.regressor(features), self.teacher(images))
            return F.cross_entropy(self.head(features), labels) + 0.5 * hint

        def validation_step(self, batch):
            self.log("accuracy", accuracy(self(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=3e-3)

    trainer(max_epochs=4).fit(FitNet(pretrained()), *loaders(*pictures(seed=26)))


class Plain(TrainModule):
    """A classifier whose weights a callback averages."""

    def __init__(self, lr=0.05):
        super().__init__()
        self.net = nn.Sequential(convolutions(norm=lambda c: nn.GroupNorm(4, c)), nn.Linear(32, 4))

    def training_step(self, batch):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch):
        scores = self.net(batch[0])
        self.log_dict({"loss": F.cross_entropy(scores, batch[1]), "accuracy": accuracy(scores, batch[1])})

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)


@right(area="vision")
def validates_the_average_of_the_weights(trainer):
    """Validation is of the averaged weights, so that it is not of the weights that were just trained."""
    data = loaders(*pictures(seed=27))
    trainer(max_epochs=5, callbacks=[EMA(decay=0.95, warmup=True)]).fit(Plain(), *data)


@right(area="vision", source="https://arxiv.org/abs/1803.05407")
def averages_the_last_epochs(trainer):
    """SWA begins at half of the run; validations are of the plain weights until the end."""
    data = loaders(*pictures(seed=28))
    run = trainer(max_epochs=6, callbacks=[SWA(start=0.5, every="1ep")])
    module = Plain()
    run.fit(module, *data)
    run.validate(module, data[1])
