"""Gradients that are clipped away, not divided, divided twice, or not zeroed."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import TrainModule

from ...programs import planted
from ...tasks_data import (
    Classifier,
    Regressor,
    Words,
    convolutions,
    graphs,
    loaders,
    mlp,
    pictures,
    prices,
    sentences,
    standard,
    table,
    waves,
)


@planted("clipped-away", area="table")
def clips_the_norm_to_a_thousandth(trainer):
    """``clip_grad_norm=0.001`` makes each gradient of SGD a thousandth."""

    class Net(Classifier):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer(max_epochs=4, clip_grad_norm=0.001).fit(Net(mlp(8, 3)), *loaders(*table()))


@planted(
    "clipped-away",
    area="vision",
    source="https://github.com/wandb/senpai/pull/978",
)
def sums_the_loss_of_pixels_and_clips_at_one(trainer):
    """A segmentation loss is a hundred times that of the paper, and the norm is still clipped at 0.1."""

    class Segment(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1)
            )

        def loss(self, batch):
            pixels = F.binary_cross_entropy_with_logits(self.net(batch[0]), batch[1], reduction="none")
            return pixels.flatten(1).sum(1).mean()

        def training_step(self, batch):
            return self.loss(batch)

        def validation_step(self, batch):
            return self.loss(batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    images, _ = pictures()
    bright = (F.avg_pool2d(standard(images), 3, 1, 1) > 0.3).float()
    trainer(max_epochs=3, clip_grad_norm=0.1).fit(Segment(), *loaders(standard(images), bright, batch=20))


@planted("clipped-away", area="series")
def clips_values_at_a_number_for_the_norm(trainer):
    """``clip_grad_value=1e-5`` leaves the sign of each gradient and nothing of its size."""

    class Net(TrainModule):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(1, 16, batch_first=True)
            self.out = nn.Linear(16, 1)

        def training_step(self, batch):
            return F.mse_loss(self.out(self.rnn(batch[0])[1][-1]), batch[1])

        def validation_step(self, batch):
            return F.mse_loss(self.out(self.rnn(batch[0])[1][-1]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer(max_epochs=3, clip_grad_value=1e-5).fit(Net(), *loaders(*waves()))


@planted(
    "clipped-away",
    area="language",
    source="https://github.com/facebookresearch/detr/issues/198",
)
def clips_by_hand_before_the_step(trainer):
    """Under manual optimization the norm is clipped to 1e-3, where gradients have a norm of about 1."""

    class Text(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.net = Words()

        def training_step(self, batch):
            optimizer = self.optimizers()
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            optimizer.zero_grad()
            self.manual_backward(loss)
            nn.utils.clip_grad_norm_(self.net.parameters(), 1e-3)
            optimizer.step()
            return loss

        def validation_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)

    trainer(max_epochs=4).fit(Text(), *loaders(*sentences()))


@planted("undivided-accumulation", area="vision")
def divides_what_the_trainer_divides(trainer):
    """``accumulate=4`` averages over micro-batches already, and the step divides by 4 as well."""

    class Net(Classifier):
        def training_step(self, batch):
            return super().training_step(batch) / 4

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    images, labels = pictures()
    trainer(max_epochs=6, accumulate=4).fit(
        Net(convolutions()), *loaders(standard(images), labels, batch=15)
    )


@planted("undivided-accumulation", area="language")
def divides_by_the_steps_of_its_own_option(trainer):
    """The module takes ``accumulation_steps`` as its own argument too, as scripts of other loops do."""

    class Text(TrainModule):
        def __init__(self, accumulation_steps):
            super().__init__()
            self.accumulation_steps = accumulation_steps
            self.net = Words()
            self.criterion = nn.CrossEntropyLoss()

        def training_step(self, batch, batch_idx):
            loss = self.criterion(self.net(batch[0]), batch[1])
            self.log("cross_entropy", loss)
            loss = loss / self.accumulation_steps
            return {"loss": loss}

        def validation_step(self, batch, batch_idx):
            self.log("cross_entropy", self.criterion(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)

    train, val = loaders(*sentences(), batch=8)
    trainer(max_epochs=6, accumulate=8).fit(Text(accumulation_steps=8), train, val)


@planted(
    "undivided-accumulation",
    area="table",
    source="https://github.com/fastai/fastai/issues/3023",
)
def adds_gradients_of_eight_batches_up(trainer):
    """Manual accumulation over 8 batches steps with the sum of their gradients."""

    class Manual(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.net = mlp(8, 3)

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            self.manual_backward(loss)
            if (batch_idx + 1) % 8 == 0:
                optimizer.step()
                optimizer.zero_grad()
            return loss

        def validation_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.2)

    trainer(max_epochs=6).fit(Manual(), *loaders(*table(rows=512), batch=8))


@planted(
    "undivided-accumulation",
    area="diffusion",
    source="https://github.com/ultralytics/ultralytics/issues/5721",
)
def splits_a_batch_and_adds_the_parts_losses(trainer):
    """A batch is split into 4 parts, and the mean loss of each is added without dividing."""
    images, _ = pictures()

    class Chunks(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.net = nn.Sequential(nn.Linear(65, 96), nn.SiLU(), nn.Linear(96, 64))

        def training_step(self, batch):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            for x in batch[0].flatten(1).chunk(4):
                t = torch.rand(len(x), 1)
                noise = torch.randn_like(x)
                guess = self.net(torch.cat([(1 - t).sqrt() * x + t.sqrt() * noise, t], 1))
                self.manual_backward(F.mse_loss(guess, noise))
            optimizer.step()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer(max_epochs=3).fit(Chunks(), DataLoader(TensorDataset(standard(images)), 24, shuffle=True))


@planted("stale-gradients", area="table")
def never_zeroes_gradients(trainer):
    """Manual optimization without ``zero_grad``: each step adds to the gradients of all before."""

    class Manual(Regressor):
        def __init__(self):
            super().__init__(mlp(6, 1))
            self.automatic_optimization = False

        def training_step(self, batch):
            optimizer = self.optimizers()
            loss = super().training_step(batch)
            self.manual_backward(loss)
            optimizer.step()
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer(max_epochs=3).fit(Manual(), *loaders(*prices()))


@planted("stale-gradients", area="graph")
def zeroes_gradients_once_an_epoch(trainer):
    """``zero_grad`` stands in the loop over epochs, not in that over batches."""

    class Graphs(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.a, self.b = nn.Linear(8, 24), nn.Linear(24, 2)

        def forward(self, x, edges):
            near = edges @ x / edges.sum(2, keepdim=True).clamp(min=1)
            return self.b(torch.relu(self.a(torch.cat([x, x * near], 2))).mean(1))

        def on_train_epoch_start(self):
            self.optimizers().zero_grad()

        def training_step(self, batch):
            x, edges, y = batch
            loss = F.cross_entropy(self(x, edges), y)
            self.manual_backward(loss)
            self.optimizers().step()
            return loss

        def validation_step(self, batch):
            x, edges, y = batch
            return F.cross_entropy(self(x, edges), y)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    trainer(max_epochs=4).fit(Graphs(), *loaders(*graphs()))


class Gan(TrainModule):
    """Generator and discriminator of small pictures; subclasses write the step."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(8, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64))
        self.discriminator = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

    def judged(self, images, real):
        logits = self.discriminator(images)
        return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))

    def configure_optimizers(self):
        return [
            torch.optim.Adam(self.generator.parameters(), 1e-3, betas=(0.5, 0.999)),
            torch.optim.Adam(self.discriminator.parameters(), 1e-3, betas=(0.5, 0.999)),
        ]


@planted(
    "stale-gradients",
    area="gan",
    source="https://github.com/Lightning-AI/pytorch-lightning/issues/557",
)
def leaves_the_generators_gradients_in_the_discriminator(trainer):
    """The discriminator steps with what the generator's loss left in its gradients as well."""

    class Stale(Gan):
        def training_step(self, batch):
            real = batch[0].flatten(1)
            for_g, for_d = self.optimizers()
            fake = self.generator(torch.randn(len(real), 8))
            for_g.zero_grad()
            self.manual_backward(self.judged(fake, True))
            for_g.step()
            self.manual_backward(self.judged(real, True) + self.judged(fake.detach(), False))
            for_d.step()
            for_d.zero_grad()

    images, _ = pictures()
    trainer(max_epochs=3).fit(Stale(), DataLoader(TensorDataset(standard(images)), 24, shuffle=True))


@planted(
    "stale-gradients",
    area="gan",
    source="https://github.com/ajbrock/BigGAN-PyTorch/issues/25",
)
def does_not_zero_between_the_critics_steps(trainer):
    """Three steps of the discriminator for one of the generator, with one ``zero_grad`` before all."""

    class Stale(Gan):
        def training_step(self, batch):
            real = batch[0].flatten(1)
            for_g, for_d = self.optimizers()
            for_d.zero_grad()
            for _ in range(3):
                fake = self.generator(torch.randn(len(real), 8)).detach()
                self.manual_backward(self.judged(real, True) + self.judged(fake, False))
                for_d.step()
            for_g.zero_grad()
            self.manual_backward(self.judged(self.generator(torch.randn(len(real), 8)), True))
            for_g.step()

    images, _ = pictures()
    trainer(max_epochs=3).fit(Stale(), DataLoader(TensorDataset(standard(images)), 24, shuffle=True))


@planted(
    "stale-gradients", area="gan", source="https://github.com/Project-MONAI/GenerativeModels/issues/102"
)
def zeroes_the_generators_optimizer_twice(trainer):
    """Both ``zero_grad`` are those of the generator's optimizer; the discriminator's gradients stay."""

    class Stale(Gan):
        def training_step(self, batch):
            real = batch[0].flatten(1)
            optimizer_g, optimizer_d = self.optimizers()
            fake = self.generator(torch.randn(len(real), 8))
            optimizer_g.zero_grad()
            self.discriminator.requires_grad_(False)
            self.manual_backward(self.judged(fake, True))
            optimizer_g.step()
            self.discriminator.requires_grad_(True)
            optimizer_g.zero_grad()
            self.manual_backward(self.judged(real, True))
            self.manual_backward(self.judged(fake.detach(), False))
            optimizer_d.step()

    images, _ = pictures()
    trainer(max_epochs=3).fit(Stale(), DataLoader(TensorDataset(standard(images)), 24, shuffle=True))
