"""What optimizers and averages keep: lost, shared by accident, or never used."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from paceline import TrainModule
from paceline.callbacks import EMA, SWA

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
from .gradients import Gan


@planted(
    "optimizer-remade",
    area="table",
    source="https://github.com/alan-turing-institute/deepsensor/issues/47",
)
def makes_adam_again_each_epoch(trainer):
    """Adam's constructor is called again at the beginning of each epoch, and its moments are lost."""

    class Net(Classifier):
        def on_train_epoch_start(self):
            self.trainer.optimizers[0].__init__(self.parameters(), lr=self.lr)

    trainer(max_epochs=5).fit(Net(mlp(8, 3)), *loaders(*table()))


@planted("optimizer-remade", area="vision")
def empties_the_state_in_each_step(trainer):
    """The state is cleared in each step when the rate is set, so that momentum has no effect."""

    class Net(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.net = convolutions()

        def training_step(self, batch):
            optimizer = self.optimizers()
            rate = 0.05 / (1 + 0.01 * self.global_step)
            optimizer.state.clear()
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            return loss

        def validation_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    images, labels = pictures()
    trainer(max_epochs=3).fit(Net(), *loaders(standard(images), labels, batch=20))


@planted(
    "optimizer-remade",
    area="language",
    source="https://github.com/keras-team/keras/issues/13750",
)
def fits_one_epoch_at_a_time(trainer):
    """``fit`` is called anew for each epoch, with a new trainer and so a new Adam."""
    train, val = loaders(*sentences())
    module = Classifier(Words())
    for _ in range(4):
        trainer(max_epochs=1).fit(module, train, val)


@planted("optimizer-remade", area="series")
def loads_the_initial_state_after_each_epoch(trainer):
    """The state dict that was copied before training is loaded back to reset the rate."""

    class Net(Regressor):
        def on_fit_start(self):
            self.initial = copy.deepcopy(self.trainer.optimizers[0].state_dict())

        def on_train_epoch_start(self):
            self.trainer.optimizers[0].load_state_dict(copy.deepcopy(self.initial))

    module = Net(nn.Sequential(nn.Flatten(), mlp(24, 1)))
    trainer(max_epochs=5).fit(module, *loaders(*waves()))


@planted(
    "unused-average",
    area="vision",
    source="https://github.com/pengzhiliang/MAE-pytorch/issues/31",
)
def updates_an_average_and_validates_the_weights(trainer):
    """An average of the weights is updated in each step; validation and test never use it."""

    class Net(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = convolutions()
            self.ema = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
            self.ema.requires_grad_(False)

        def training_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def on_step_end(self):
            self.ema.update_parameters(self.net)

        def validation_step(self, batch):
            self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.net.parameters(), lr=3e-3)

    images, labels = pictures()
    trainer(max_epochs=3).fit(Net(), *loaders(standard(images), labels, batch=20))


@planted(
    "unused-average",
    area="table",
    source="https://github.com/huggingface/pytorch-image-models/issues/1831",
)
def validates_an_average_that_is_never_updated(trainer):
    """Validation uses the average, but ``update_parameters`` is called nowhere."""

    class Net(TrainModule):
        def __init__(self):
            super().__init__()
            self.model = mlp(8, 3)
            self.average = AveragedModel(self.model)
            self.average.requires_grad_(False)

        def training_step(self, batch):
            return F.cross_entropy(self.model(batch[0]), batch[1])

        def validation_step(self, batch):
            logits = self.average(batch[0])
            self.log("loss", F.cross_entropy(logits, batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.model.parameters(), lr=1e-2)

    trainer(max_epochs=3).fit(Net(), *loaders(*table()))


@planted("unused-average", area="diffusion")
def starts_the_average_after_the_end(trainer):
    """The average begins at step 2000 of the paper's schedule; this run has 30 steps."""
    images, _ = pictures()

    class Diffusion(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(65, 96), nn.SiLU(), nn.Linear(96, 64))

        def training_step(self, batch):
            x = batch[0].flatten(1)
            t, noise = torch.rand(len(x), 1), torch.randn_like(x)
            return F.mse_loss(self.net(torch.cat([(1 - t) * x + t * noise, t], 1)), noise - x)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    trainer(max_epochs=3, callbacks=[EMA(0.99, start=2000)]).fit(
        Diffusion(), DataLoader(TensorDataset(standard(images)), 24, shuffle=True)
    )


@planted("unused-average", area="table")
def begins_to_average_in_an_epoch_that_never_comes(trainer):
    """``SWA(start="10ep")`` in a run of four epochs."""
    trainer(max_epochs=4, callbacks=[SWA(start="10ep")]).fit(Regressor(mlp(6, 1)), *loaders(*prices()))


@planted(
    "unused-average", area="contrastive", source="https://github.com/lucidrains/DALLE2-pytorch/issues/131"
)
def has_a_teacher_that_never_follows(trainer):
    """The teacher is a copy that was to follow the student slowly, but its update returns early."""

    class Byol(TrainModule):
        def __init__(self):
            super().__init__()
            self.student = convolutions(classes=16)
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)
            self.predictor = mlp(16, 16)
            self.begin = 10_000

        def follow(self):
            if self.global_step < self.begin:
                return
            with torch.no_grad():
                for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                    slow.lerp_(fast, 0.01)

        def training_step(self, batch):
            a, b = (batch[0] + 0.2 * torch.randn_like(batch[0]) for _ in range(2))
            guess = F.normalize(self.predictor(self.student(a)), dim=1)
            return 2 - 2 * (guess * F.normalize(self.teacher(b), dim=1)).sum(1).mean()

        def on_step_end(self):
            self.follow()

        def configure_optimizers(self):
            parameters = [*self.student.parameters(), *self.predictor.parameters()]
            return torch.optim.Adam(parameters, lr=1e-3)

    images, _ = pictures()
    trainer(max_epochs=3).fit(Byol(), DataLoader(TensorDataset(standard(images)), 24, shuffle=True))


class Alternating(Gan):
    """Discriminator, then generator, each with its own optimizer and zeroed gradients."""

    def training_step(self, batch):
        real = batch[0].flatten(1)
        for_g, for_d = self.optimizers()
        fake = self.generator(torch.randn(len(real), 8))
        loss_d = self.judged(real, True) + self.judged(fake.detach(), False)
        for_d.zero_grad()
        self.manual_backward(loss_d)
        for_d.step()
        loss_g = self.judged(fake, True)
        for_g.zero_grad()
        self.manual_backward(loss_g)
        for_g.step()
        self.log_dict({"loss_d": loss_d.detach(), "loss_g": loss_g.detach()})


@planted("optimizer-overlap", area="gan")
def gives_all_parameters_to_the_generators_optimizer(trainer):
    """The generator's optimizer has ``self.parameters()``, and so trains the discriminator to be fooled."""

    class Both(Alternating):
        def configure_optimizers(self):
            return [
                torch.optim.Adam(self.parameters(), 1e-3, betas=(0.5, 0.999)),
                torch.optim.Adam(self.discriminator.parameters(), 1e-3, betas=(0.5, 0.999)),
            ]

    images, _ = pictures()
    trainer(max_epochs=3).fit(Both(), DataLoader(TensorDataset(standard(images)), 24, shuffle=True))


@planted("optimizer-overlap", area="transfer")
def trains_the_backbone_with_the_heads_optimizer(trainer):
    """The head is to learn fast and the backbone slowly, but the head's optimizer has all parameters."""

    class Tuned(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.backbone = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten())
            self.head = nn.Linear(288, 3)

        def training_step(self, batch):
            loss = F.cross_entropy(self.head(self.backbone(batch[0])), batch[1])
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
            return loss

        def validation_step(self, batch):
            return F.cross_entropy(self.head(self.backbone(batch[0])), batch[1])

        def configure_optimizers(self):
            slow = torch.optim.Adam(self.backbone.parameters(), lr=1e-5)
            fast = torch.optim.Adam(self.parameters(), lr=3e-3)
            return [slow, fast]

    images, labels = pictures()
    trainer(max_epochs=3).fit(Tuned(), *loaders(standard(images), labels, batch=20))


@planted("optimizer-overlap", area="gan")
def keeps_the_discriminator_inside_of_the_generator(trainer):
    """The generator holds the discriminator as a submodule, so that its ``parameters()`` has both."""

    class Generator(nn.Module):
        def __init__(self, critic):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64))
            self.critic = critic

        def forward(self, z):
            return self.net(z)

    class Nested(Alternating):
        def __init__(self):
            super().__init__()
            self.generator = Generator(self.discriminator)

    images, _ = pictures()
    trainer(max_epochs=3).fit(Nested(), DataLoader(TensorDataset(standard(images)), 24, shuffle=True))
