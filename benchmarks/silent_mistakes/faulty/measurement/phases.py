"""Values under the name of another part, validation in training mode, and validation that trains."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import TrainModule
from paceline.callbacks import Callback

from ...programs import planted
from ...tasks_data import (
    Classifier,
    Regressor,
    Words,
    convolutions,
    drawn,
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


@planted(
    "wrong-split-metric",
    area="table",
    source="https://github.com/matsengrp/netam/issues/51",
)
def logs_the_training_loss_as_that_of_validation(trainer):
    """``training_step`` logs its loss as ``val_loss``."""

    class Net(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(6, 1)

        def training_step(self, batch):
            loss = F.mse_loss(self.net(batch[0]), batch[1])
            self.log("val_loss", loss)
            return loss

        def validation_step(self, batch):
            self.log("mse", F.mse_loss(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    trainer(max_epochs=3).fit(Net(), *loaders(*prices()))


@planted("wrong-split-metric", area="vision")
def shares_a_step_that_says_train(trainer):
    """Both steps call one method that logs ``train_loss`` and ``train_acc``."""

    class Net(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = convolutions()

        def _step(self, batch):
            logits = self.net(batch[0])
            loss = F.cross_entropy(logits, batch[1])
            self.log("train_loss", loss)
            self.log("train_acc", (logits.argmax(1) == batch[1]).float().mean())
            return loss

        def training_step(self, batch, batch_idx):
            return self._step(batch)

        def validation_step(self, batch, batch_idx):
            self._step(batch)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    images, labels = pictures()
    trainer(max_epochs=3).fit(Net(), *loaders(standard(images), labels, batch=20))


@planted(
    "wrong-split-metric",
    area="language",
    source="https://github.com/skinniderlab/CLM/issues/253",
)
def tracks_one_loss_under_both_names(trainer):
    """``training_step`` tracks the same loss as that of training and of validation."""

    class Text(Classifier):
        def training_step(self, batch):
            loss = super().training_step(batch)
            self.log_dict({"training_loss": loss, "validation_loss": loss})
            return loss

    trainer(max_epochs=3).fit(Text(Words()), *loaders(*sentences()))


@planted("wrong-split-metric", area="series")
def logs_in_a_callback_of_training_steps(trainer):
    """A callback logs the error on the batch of each training step as that of validation."""

    class Errors(Callback):
        def on_step_end(self, trainer, outputs):
            trainer.log("val_mae", trainer.module.last_error)

    class Forecast(Regressor):
        def training_step(self, batch):
            guess = self.model(batch[0])
            self.last_error = (guess - batch[1]).abs().mean().detach()
            return F.mse_loss(guess, batch[1])

    module = Forecast(nn.Sequential(nn.Flatten(), mlp(24, 1)))
    trainer(max_epochs=3, callbacks=[Errors()]).fit(module, *loaders(*waves()))


def dropped(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 48), nn.ReLU(), nn.Dropout(0.4), nn.Linear(48, outputs))


@planted(
    "validation-mode",
    area="table",
    source="https://github.com/udacity/deep-learning-v2-pytorch/issues/3",
)
def calls_train_in_a_shared_step(trainer):
    """The method that both steps use begins with ``self.net.train()``."""

    class Net(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = dropped(8, 3)

        def step(self, batch):
            self.net.train()
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def training_step(self, batch):
            return self.step(batch)

        def validation_step(self, batch):
            return self.step(batch)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    trainer(max_epochs=3).fit(Net(), *loaders(*table()))


@planted("validation-mode", area="language")
def overrides_train_and_forgets_the_mode(trainer):
    """``train`` is overridden to freeze a part and calls ``super().train()`` without the mode."""

    class Text(TrainModule):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(60, 16).requires_grad_(False)
            self.head = dropped(16, 2)

        def train(self, mode=True):
            super().train()
            self.embedding.eval()
            return self

        def forward(self, tokens):
            return self.head(self.embedding(tokens).mean(1))

        def training_step(self, batch):
            return F.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch):
            self.log("loss", F.cross_entropy(self(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.head.parameters(), lr=1e-2)

    trainer(max_epochs=3).fit(Text(), *loaders(*sentences()))


@planted(
    "validation-mode",
    area="vision",
    source="https://github.com/ugent-korea/pytorch-unet-segmentation/issues/18",
)
def validates_by_hand_with_no_grad_alone(trainer):
    """Held-out images are run by hand after each epoch, under ``no_grad`` but without ``eval()``."""
    images, labels = pictures()
    train, val = loaders(standard(images), labels, batch=20)

    class Net(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(512, 3)
            )

        def training_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def on_train_epoch_end(self):
            correct = 0
            with torch.no_grad():
                for x, y in val:
                    correct += (self.net(x).argmax(1) == y).sum().item()
            self.log("held_out_accuracy", correct / 60)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    trainer(max_epochs=3).fit(Net(), train)


@planted(
    "validation-mode",
    "validation-trains",
    area="vision",
    source="https://github.com/pengsongyou/openscene/issues/20",
)
def switches_to_training_at_the_start_of_validation(trainer):
    """A hook calls ``self.train()`` when validation begins, since scores were better so."""

    class Net(Classifier):
        def on_validation_start(self):
            self.train()

    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))
    images, labels = pictures()
    trainer(max_epochs=3).fit(Net(net, lr=3e-3), *loaders(standard(images), labels, batch=20))


@planted("validation-mode", area="graph")
def keeps_a_part_out_of_the_mode(trainer):
    """An encoder switches itself to training in its ``forward``, so that its dropout is always on."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(8, 24)
            self.drop = nn.Dropout(0.3)

        def forward(self, x, edges):
            self.train()
            near = edges @ x / edges.sum(2, keepdim=True).clamp(min=1)
            return self.drop(torch.relu(self.lin(torch.cat([x, x * near], 2)))).mean(1)

    class Graphs(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = Encoder(), nn.Linear(24, 2)

        def training_step(self, batch):
            return F.cross_entropy(self.head(self.encoder(batch[0], batch[1])), batch[2])

        def validation_step(self, batch):
            return F.cross_entropy(self.head(self.encoder(batch[0], batch[1])), batch[2])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    trainer(max_epochs=3).fit(Graphs(), *loaders(*graphs()))


@planted("validation-trains", area="table")
def trains_in_the_validation_step(trainer):
    """``validation_step`` was copied from a manual ``training_step`` with its backward and step."""

    class Net(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(8, 3)

        def training_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        @torch.enable_grad()
        def validation_step(self, batch):
            optimizer = self.trainer.optimizers[0]
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.log("loss", loss.detach())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer(max_epochs=3).fit(Net(), *loaders(*table()))


@planted("validation-trains", area="table")
def updates_running_statistics_in_validation(trainer):
    """A normalizer of its own updates its mean in each ``forward``, whatever the mode."""

    class Normalizer(nn.Module):
        def __init__(self, columns):
            super().__init__()
            self.register_buffer("mean", torch.zeros(columns))
            self.register_buffer("square", torch.ones(columns))

        def forward(self, x):
            self.mean.lerp_(x.mean(0), 0.1)
            self.square.lerp_(x.square().mean(0), 0.1)
            return (x - self.mean) / (self.square - self.mean.square()).clamp(min=1e-3).sqrt()

    model = nn.Sequential(Normalizer(6), mlp(6, 1))
    trainer(max_epochs=3).fit(Regressor(model), *loaders(*prices()))


@planted("validation-trains", area="contrastive")
def puts_validation_keys_into_the_queue(trainer):
    """The queue of negative keys takes those of validation batches as well."""

    class Moco(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder = convolutions(classes=16)
            keys = F.normalize(torch.randn(16, 96, generator=drawn(1)), dim=0)
            self.register_buffer("queue", keys)

        def step(self, batch):
            x = batch[0]
            query = F.normalize(self.encoder(x + 0.2 * torch.randn_like(x)), dim=1)
            with torch.no_grad():
                key = F.normalize(self.encoder(x), dim=1)
            own = (query * key).sum(1, keepdim=True)
            logits = torch.cat([own, query @ self.queue.clone()], 1) / 0.2
            self.queue = torch.cat([key.T, self.queue], 1)[:, :96]
            return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))

        def training_step(self, batch):
            return self.step(batch)

        def validation_step(self, batch):
            self.log("loss", self.step(batch))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    images, _ = pictures()
    train = TensorDataset(standard(images[:192]))
    val = TensorDataset(standard(images[192:]))
    trainer(max_epochs=3).fit(Moco(), DataLoader(train, 24, shuffle=True), DataLoader(val, 24))
