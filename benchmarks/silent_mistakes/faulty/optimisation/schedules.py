"""Schedules that count in the other unit, and warm-ups that outlast the run."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from paceline import TrainModule
from paceline.schedules import Cosine

from ...programs import planted
from ...tasks_data import (
    Classifier,
    Regressor,
    Words,
    convolutions,
    loaders,
    mlp,
    pictures,
    prices,
    sentences,
    standard,
    table,
    waves,
)


@planted("long-warmup", area="language")
def warms_up_for_4000_steps(trainer):
    """The warm-up of 4000 steps is that of the paper, and the run has 36 steps."""

    class Text(Classifier):
        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=1e-3, betas=(0.9, 0.98))
            noam = lr_scheduler.LambdaLR(
                optimizer, lambda step: min((step + 1) / 4000, (4000 / (step + 1)) ** 0.5)
            )
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": noam, "interval": "step"}}

    trainer(max_epochs=3).fit(Text(Words()), *loaders(*sentences()))


@planted("long-warmup", area="vision")
def warms_up_for_more_steps_than_there_are(trainer):
    """``warmup=1000`` was found on a larger data set; here an epoch has 9 steps."""

    class Net(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = convolutions()

        def training_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
            return {"optimizer": optimizer, "lr_scheduler": Cosine(warmup=1000)}

    images, labels = pictures()
    trainer(max_epochs=4).fit(Net(), *loaders(standard(images), labels, batch=20))


@planted(
    "long-warmup",
    area="table",
)
def computes_the_warmup_from_samples(trainer):
    """A tenth of the samples of all epochs is taken for a tenth of the steps: 96 of 60 steps."""
    x, y = table()
    train, val = loaders(x, y)
    warmup = int(0.1 * len(train.dataset) * 4)

    class Net(Classifier):
        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
            rise = lr_scheduler.LinearLR(optimizer, start_factor=0.001, total_iters=warmup)
            fall = lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
            both = lr_scheduler.SequentialLR(optimizer, [rise, fall], milestones=[warmup])
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": both, "interval": "step"}}

    trainer(max_epochs=4).fit(Net(mlp(8, 3)), train, val)


@planted("long-warmup", area="diffusion")
def sets_rates_by_hand_in_a_hook(trainer):
    """The module writes the rate in each step, rising over 5000 steps."""
    images, _ = pictures()

    class Diffusion(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(65, 96), nn.SiLU(), nn.Linear(96, 64))

        def on_step_start(self, trainer):
            for group in trainer.optimizers[0].param_groups:
                group["lr"] = 2e-3 * min(1.0, (trainer.global_step + 1) / 5000)

        def training_step(self, batch):
            x = batch[0].flatten(1)
            t = torch.rand(len(x), 1)
            noise = torch.randn_like(x)
            noisy = torch.cos(t * math.pi / 2) * x + torch.sin(t * math.pi / 2) * noise
            return F.mse_loss(self.net(torch.cat([noisy, t], 1)), noise)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    trainer(max_epochs=4).fit(Diffusion(), DataLoader(TensorDataset(standard(images)), 24, shuffle=True))


@planted(
    "schedule-interval",
    "long-warmup",
    area="vision",
    source="https://github.com/pytorch/pytorch/issues/65417",
)
def steps_one_cycle_once_an_epoch(trainer):
    """``OneCycleLR`` counts steps, those of all images with validation, but is stepped after each epoch."""

    class Net(Classifier):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
            scheduler = lr_scheduler.OneCycleLR(
                optimizer, 0.05, epochs=4, steps_per_epoch=len(images) // 20
            )
            return [optimizer], [scheduler]

    images, labels = pictures()
    trainer(max_epochs=4).fit(Net(convolutions()), *loaders(standard(images), labels, batch=20))


@planted(
    "schedule-interval",
    area="contrastive",
    source="https://github.com/sthalles/SimCLR/issues/8",
)
def anneals_over_batches_but_steps_by_epochs(trainer):
    """The cosine's ``T_max`` is the number of batches, and the schedule steps once an epoch."""
    images, _ = pictures()
    loader = DataLoader(TensorDataset(standard(images)), 8, shuffle=True)

    class SimClr(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder = convolutions(classes=16)

        def training_step(self, batch):
            noisy = [batch[0] + 0.2 * torch.randn_like(batch[0]) for _ in range(2)]
            a, b = (F.normalize(self.encoder(x), dim=1) for x in noisy)
            return F.cross_entropy(a @ b.T / 0.2, torch.arange(len(a)))

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), 1e-3)
            scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(loader), eta_min=0)
            return optimizer, scheduler

    trainer(max_epochs=3).fit(SimClr(), loader)


@planted(
    "schedule-interval",
    "no-update",
    area="table",
    source="https://github.com/ScrollPrize/villa/pull/1495",
)
def counts_epochs_in_a_schedule_of_steps(trainer):
    """Polynomial decay over 4 epochs is stepped in each step: the rate is 0 after step 4."""

    class Net(Classifier):
        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
            scheduler = lr_scheduler.PolynomialLR(optimizer, total_iters=self.trainer.max_epochs, power=1.0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    trainer(max_epochs=4).fit(Net(mlp(8, 3)), *loaders(*table()))


@planted("schedule-interval", area="series")
def divides_the_rate_every_two_steps(trainer):
    """``StepLR(step_size=2)`` was meant in epochs, and the interval is the step."""

    class Net(Regressor):
        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
            decay = lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": decay, "interval": "step"}}

    model = nn.Sequential(nn.Flatten(), mlp(24, 1))
    trainer(max_epochs=5).fit(Net(model), *loaders(*waves()))


@planted("schedule-interval", area="transfer")
def has_milestones_in_steps_for_epochs(trainer):
    """Milestones of 300 and 600 steps are compared with epochs, of which there are 5."""

    class Head(TrainModule):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten())
            self.backbone.requires_grad_(False)
            self.head = nn.Linear(288, 3)

        def training_step(self, batch):
            return F.cross_entropy(self.head(self.backbone(batch[0])), batch[1])

        def validation_step(self, batch):
            return F.cross_entropy(self.head(self.backbone(batch[0])), batch[1])

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.head.parameters(), lr=0.01, momentum=0.9)
            return optimizer, lr_scheduler.MultiStepLR(optimizer, milestones=[300, 600], gamma=0.1)

    images, labels = pictures()
    trainer(max_epochs=5).fit(Head(), *loaders(standard(images), labels, batch=20))


@planted(
    "schedule-interval",
    area="table",
    source="https://github.com/galilai-group/stable-worldmodel/issues/280",
)
def steps_a_warmup_of_steps_under_manual_optimization_by_epochs(trainer):
    """The linear rise over 40 steps is stepped in ``on_train_epoch_end``, four times in all."""

    class Manual(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.net = mlp(6, 1)

        def training_step(self, batch):
            optimizer = self.optimizers()
            loss = F.mse_loss(self.net(batch[0]), batch[1])
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

        def on_train_epoch_end(self):
            self.lr_schedulers().step()

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
            rise = lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=40)
            return optimizer, rise

    trainer(max_epochs=4).fit(Manual(), *loaders(*prices())[:1])
