"""Runs that look wrong and are right: few samples, learned by heart, cyclic rates, several fits."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from paceline import TrainModule
from paceline.callbacks import Checkpoint, EarlyStopping
from paceline.parameter_groups import decay_groups
from paceline.schedules import Cosine, CosineWithRestarts

from ..programs import right
from ..tasks_right import accuracy, convolutions, loaders, pictures


class Classifier(TrainModule):
    """Four classes of pictures, with batch norms."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(convolutions(), nn.Linear(32, 4))

    def forward(self, images):
        return self.net(images)

    def training_step(self, batch):
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch):
        scores = self(batch[0])
        self.log_dict({"loss": F.cross_entropy(scores, batch[1]), "accuracy": accuracy(scores, batch[1])})

    def test_step(self, batch):
        self.log("accuracy", accuracy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


@right(area="vision", source="https://karpathy.github.io/2019/04/25/recipe/")
def one_batch_is_learned_by_heart(trainer):
    """Training and validation have the same single batch: that the network can fit it is what is tested."""
    trainer(max_epochs=30, overfit_batches=1).fit(Classifier(), *loaders(*pictures(seed=110)))


@right(area="vision")
def twelve_pictures_in_one_batch(trainer):
    """Each epoch is one step on all 12 samples; validation has many more."""
    images, labels = pictures(120, seed=111, noise=0.4)
    order = labels.argsort(stable=True)
    few = torch.cat([order[labels[order] == label][:3] for label in range(4)])
    rest = torch.ones(120, dtype=torch.bool)
    rest[few] = False
    train = DataLoader(TensorDataset(images[few], labels[few]), batch_size=12, shuffle=True)
    val = DataLoader(TensorDataset(images[rest], labels[rest]), batch_size=108)
    trainer(max_epochs=25).fit(Classifier(), train, val)


@right(area="vision")
def gradients_are_accumulated_by_hand(trainer):
    """Gradients are zeroed only in every fourth step, and each loss is divided by four."""

    class Accumulates(Classifier):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            loss = F.cross_entropy(self(batch[0]), batch[1])
            self.manual_backward(loss / 4)
            if (batch_idx + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            self.log("loss", loss)

    train, val = loaders(*pictures(512, seed=112), batch=16)
    trainer(max_epochs=5).fit(Accumulates(), train, val)


@right(area="vision", source="https://arxiv.org/abs/2010.01412")
def sharpness_aware_steps(trainer):
    """Each step goes backward twice, and adds to the weights what it takes off again."""

    class SAM(Classifier):
        def __init__(self, radius=0.05):
            super().__init__()
            self.automatic_optimization = False
            self.net = nn.Sequential(convolutions(norm=lambda c: nn.GroupNorm(4, c)), nn.Linear(32, 4))

        def training_step(self, batch):
            images, labels = batch
            optimizer = self.optimizers()
            weights = list(self.parameters())
            optimizer.zero_grad()
            loss = F.cross_entropy(self(images), labels)
            self.manual_backward(loss)
            norm = torch.stack([w.grad.norm() for w in weights]).norm()
            steps = [self.hparams.radius * w.grad / (norm + 1e-12) for w in weights]
            with torch.no_grad():
                for weight, step in zip(weights, steps, strict=True):
                    weight.add_(step)
            optimizer.zero_grad()
            self.manual_backward(F.cross_entropy(self(images), labels))
            with torch.no_grad():
                for weight, step in zip(weights, steps, strict=True):
                    weight.sub_(step)
            optimizer.step()
            self.log("loss", loss)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    trainer(max_epochs=4).fit(SAM(), *loaders(*pictures(seed=113)))


@right(area="vision", source="https://arxiv.org/abs/1608.03983")
def rates_return_to_almost_nothing(trainer):
    """Three warm restarts: at the end of each the rate is nearly 0, then it is whole again."""

    class Restarts(Classifier):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, nesterov=True)
            return {"optimizer": optimizer, "lr_scheduler": CosineWithRestarts(cycles=3)}

    trainer(max_epochs=6).fit(Restarts(), *loaders(*pictures(seed=114)))


@right(area="vision", source="https://arxiv.org/abs/1708.07120")
def one_cycle_with_a_high_peak(trainer):
    """The rate rises from a hundredth to 0.3 within a third of the run, and falls to nearly 0."""

    class OneCycle(Classifier):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, max_lr=0.3, total_steps=self.trainer.total_steps, div_factor=100
            )
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    trainer(max_epochs=6).fit(OneCycle(), *loaders(*pictures(seed=115)))


@right(area="vision")
def rate_and_end_follow_the_accuracy(trainer):
    """Plateau, early stopping and checkpoint all want a maximum; the test data is apart and read once."""

    class Plateau(Classifier):
        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=2e-3)
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=1)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": schedule, "monitor": "val/accuracy"},
            }

    images, labels = pictures(400, seed=116, noise=1.2)
    train, val = loaders(images[:320], labels[:320])
    test = DataLoader(TensorDataset(images[320:], labels[320:]), batch_size=80)
    callbacks = [
        EarlyStopping("val/accuracy", mode="max", patience=4),
        Checkpoint(monitor="val/accuracy", mode="max"),
    ]
    run = trainer(max_epochs=5, callbacks=callbacks, run_dir="runs", name="plateau")
    run.fit(Plateau(), train, val)
    run.test(dataloader=test, weights="best")


@right(area="vision")
def gradients_are_clipped_in_the_first_steps(trainer):
    """Clipping to 0.5 acts while gradients are large, by a factor of two or so, and seldom later."""

    class Clipped(Classifier):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    trainer(max_epochs=5, clip_grad_norm=0.5).fit(Clipped(), *loaders(*pictures(seed=117)))


@right(area="vision")
def folds_of_a_cross_validation(trainer):
    """Each sample is in training and in validation, but of different fits of different modules."""
    data = TensorDataset(*pictures(240, seed=118))
    for fold in range(3):
        inside = [i for i in range(240) if i % 3 != fold]
        outside = [i for i in range(240) if i % 3 == fold]
        train = DataLoader(Subset(data, inside), batch_size=32, shuffle=True)
        trainer(max_epochs=2).fit(Classifier(), train, DataLoader(Subset(data, outside), batch_size=80))


class Shuffled(IterableDataset):
    """A stream that shuffles by itself; its loader cannot."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __iter__(self):
        for index in torch.randperm(len(self.images)).tolist():
            yield self.images[index], self.labels[index]


@right(area="vision")
def a_stream_shuffles_by_itself(trainer):
    """The training loader has no shuffle; the validation loader's samples are sorted by class."""
    images, labels = pictures(320, seed=119)
    order = 240 + labels[240:].argsort()
    val = DataLoader(TensorDataset(images[order], labels[order]), batch_size=16)
    train = DataLoader(Shuffled(images[:240], labels[:240]), batch_size=32)
    trainer(max_epochs=4).fit(Classifier(), train, val)


@right(area="vision", source="https://arxiv.org/abs/1706.06083")
def attacks_are_made_in_eval_mode(trainer):
    """Within a training step the network is in eval mode while an attack is made, and then trains on it."""

    class Adversarial(Classifier):
        def attack(self, images, labels):
            self.net.eval()
            moved = images + 0.1 * torch.empty_like(images).uniform_(-1, 1)
            moved.requires_grad_(True)
            (slope,) = torch.autograd.grad(F.cross_entropy(self.net(moved), labels), moved)
            self.net.train()
            return (moved + 0.1 * slope.sign()).detach()

        def training_step(self, batch):
            images, labels = batch
            return F.cross_entropy(self(self.attack(images, labels)), labels)

    trainer(max_epochs=4).fit(Adversarial(), *loaders(*pictures(seed=120)))


@right(area="vision", source="https://arxiv.org/abs/1803.03635")
def half_of_the_weights_are_pruned(trainer):
    """After a first fit half of the weights are masked to 0 for good; the second fit trains the others."""
    module, data = Classifier(), loaders(*pictures(seed=121))
    trainer(max_epochs=2).fit(module, *data)
    for layer in module.net.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            prune.l1_unstructured(layer, "weight", amount=0.5)
    trainer(max_epochs=2).fit(module, *data)


@right(area="vision", source="https://arxiv.org/abs/1604.06174")
def activations_are_computed_again(trainer):
    """Blocks are called within a checkpoint, under no_grad first and again in the backward pass."""

    class Recomputed(Classifier):
        def __init__(self):
            super().__init__()
            self.stem, self.head = nn.Linear(64, 24), nn.Linear(24, 4)
            self.net = nn.ModuleList(nn.Sequential(nn.Linear(24, 24), nn.GELU()) for _ in range(3))

        def forward(self, images):
            x = self.stem(images.flatten(1))
            for block in self.net:
                x = x + checkpoint(block, x, use_reentrant=False)
            return self.head(x)

        def configure_optimizers(self):
            return torch.optim.AdamW(decay_groups(self, 0.05), lr=3e-3)

    trainer(max_epochs=4).fit(Recomputed(), *loaders(*pictures(seed=122)))


@right(area="vision", source="https://arxiv.org/abs/1706.02677")
def warm_up_from_a_rate_of_zero(trainer):
    """The first step has a rate of exactly 0; the warm-up lasts one of five epochs."""

    class WarmedUp(Classifier):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            return {"optimizer": optimizer, "lr_scheduler": Cosine(warmup="1ep", warmup_start=0)}

    trainer(max_epochs=5).fit(WarmedUp(), *loaders(*pictures(seed=124)))


@right(area="vision")
def the_whole_data_in_each_step(trainer):
    """There is no shuffle, since each step has all samples; the optimizer evaluates the loss many times."""

    class Quasi(Classifier):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))

        def training_step(self, batch):
            images, labels = batch
            optimizer, losses = self.optimizers(), []

            def closure():
                optimizer.zero_grad()
                loss = F.cross_entropy(self(images), labels) + 1e-3 * self.net[1].weight.square().sum()
                self.manual_backward(loss)
                losses.append(loss.detach())
                return loss

            optimizer.step(closure)
            self.log("loss", losses[0])

        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), lr=0.5, max_iter=5)

    images, labels = pictures(320, seed=125)
    train = DataLoader(TensorDataset(images[:240], labels[:240]), batch_size=240)
    val = DataLoader(TensorDataset(images[240:], labels[240:]), batch_size=80)
    trainer(max_epochs=6).fit(Quasi(), train, val)


@right(area="vision")
def epochs_are_shortened(trainer):
    """An epoch is four of ten batches, of other samples each time, to validate more often."""
    train, val = loaders(*pictures(426, seed=126))
    trainer(max_epochs=10, limit_train_batches=4).fit(Classifier(), train, val)


@right(
    area="vision",
    debatable="decay of norms and biases is the optimizer's default and small; many leave it out there",
)
def every_weight_decays_by_the_default(trainer):
    """AdamW has all parameters in one group with its default decay of 0.01, norms and biases too."""

    class Decays(Classifier):
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=2e-3)

    trainer(max_epochs=4).fit(Decays(), *loaders(*pictures(seed=123)))
