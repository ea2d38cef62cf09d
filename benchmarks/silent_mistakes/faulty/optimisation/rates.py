"""Rates that are zero, too low or too high."""

import torch
from torch import nn
from torch.nn import functional as F

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


@planted("no-update", area="vision")
def sets_the_rate_to_zero_for_a_test(trainer):
    """``lr=0.0`` stayed from a test of the loader."""

    class Net(Classifier):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0, momentum=0.9)

    images, labels = pictures()
    trainer(max_epochs=3).fit(Net(convolutions()), *loaders(standard(images), labels, batch=20))


@planted("no-update", area="table")
def zeroes_gradients_before_the_step(trainer):
    """``zero_grad`` stands between ``backward`` and ``step``."""

    class Manual(Regressor):
        def __init__(self):
            super().__init__(mlp(6, 1))
            self.automatic_optimization = False

        def training_step(self, batch):
            optimizer = self.optimizers()
            loss = super().training_step(batch)
            self.manual_backward(loss)
            optimizer.zero_grad()
            optimizer.step()
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    trainer(max_epochs=3).fit(Manual(), *loaders(*prices()))


@planted("no-update", "schedule-interval", area="language")
def divides_whole_numbers_in_the_schedule(trainer):
    """The factor of ``LambdaLR`` is a whole division, which is 0 after step 0."""
    steps = 36

    class Text(Classifier):
        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (steps - step) // steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    trainer(max_epochs=3).fit(Text(Words()), *loaders(*sentences()))


@planted("no-update", area="series")
def multiplies_the_rate_by_a_decay_of_zero(trainer):
    """``gamma`` of the exponential schedule is what is taken off, not what is left: 0.05 in each step."""

    class Forecast(TrainModule):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.GRU(1, 16, batch_first=True), nn.Linear(16, 1)

        def training_step(self, batch):
            return F.mse_loss(self.out(self.rnn(batch[0])[0][:, -1]), batch[1])

        def validation_step(self, batch):
            return F.mse_loss(self.out(self.rnn(batch[0])[0][:, -1]), batch[1])

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
            decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.05)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": decay, "interval": "step"}}

    trainer(max_epochs=3).fit(Forecast(), *loaders(*waves()))


@planted("no-update", "low-rate", area="transfer")
def scales_the_rate_of_a_new_head_down_twice(trainer):
    """The rate is given as ``1e-3 * 1e-9``, a factor that was meant for the weight decay."""
    backbone = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten()).requires_grad_(False)
    head = nn.Linear(288, 3)
    images, labels = pictures()
    module = TrainModule.of(
        nn.Sequential(backbone, head),
        F.cross_entropy,
        lambda parameters: torch.optim.SGD(parameters, lr=1e-3 * 1e-9),
    )
    trainer(max_epochs=3).fit(module, *loaders(standard(images), labels, batch=20))


@planted("low-rate", area="vision")
def trains_from_scratch_at_a_rate_for_fine_tuning(trainer):
    """SGD with a rate of 2e-5, taken from a script that tunes a pretrained transformer."""

    class Net(Classifier):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=2e-5)

    images, labels = pictures()
    trainer(max_epochs=4).fit(Net(convolutions()), *loaders(standard(images), labels, batch=20))


@planted("low-rate", area="graph")
def writes_one_zero_too_many(trainer):
    """Adam with ``lr=1e-7``: weights of 0.3 move by 1e-5 in the run."""

    class Net(TrainModule):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 24), nn.Linear(24, 2)

        def step(self, batch):
            x, edges, y = batch
            near = edges @ x / edges.sum(2, keepdim=True).clamp(min=1)
            return F.cross_entropy(self.b(F.gelu(self.a(torch.cat([x, x * near], 2))).mean(1)), y)

        def training_step(self, batch):
            return self.step(batch)

        def validation_step(self, batch):
            return self.step(batch)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.0000001)

    trainer(max_epochs=4).fit(Net(), *loaders(*graphs()))


@planted("high-rate", area="table")
def gives_adam_the_rate_of_sgd(trainer):
    """Adam with ``lr=1.0``: each step moves each weight by about 1."""
    trainer(max_epochs=3).fit(Classifier(mlp(8, 3), lr=1.0), *loaders(*table()))


@planted("high-rate", area="language")
def multiplies_the_rate_by_the_batch_size(trainer):
    """The rate is scaled with the batch size and not divided by the size it was found at."""
    batch_size = 64

    class Tiny(TrainModule):
        def __init__(self, base_lr=0.01):
            super().__init__()
            self.lr = base_lr * batch_size
            self.net = Words()

        def training_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.RMSprop(self.parameters(), lr=self.lr)

    trainer(max_epochs=6).fit(Tiny(), *loaders(*sentences(), batch=batch_size))
