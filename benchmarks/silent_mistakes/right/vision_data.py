"""Pictures and labels that look wrong and are right: raw bytes, depths, holes, few samples, soft labels."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from paceline import DataModule, TrainModule
from paceline.callbacks import Evaluator

from ..programs import right
from ..tasks_right import accuracy, bytes_of, convolutions, loaders, pictures, split


class Classifier(TrainModule):
    """Four classes of pictures."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(convolutions(), nn.Linear(32, 4))

    def forward(self, images):
        return self.net(images)

    def training_step(self, batch):
        images, labels = batch
        return F.cross_entropy(self(images), labels)

    def validation_step(self, batch):
        images, labels = batch
        scores = self(images)
        self.log("loss", F.cross_entropy(scores, labels))
        self.log("accuracy", accuracy(scores, labels))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


@right(area="vision")
def bytes_are_scaled_in_the_model(trainer):
    """Batches are uint8 of 0 to 255; forward divides them and takes off the mean."""

    class Bytes(Classifier):
        def forward(self, images):
            return self.net((images.float() / 255 - 0.44) / 0.16)

    images, labels = pictures(seed=70)
    trainer(max_epochs=4).fit(Bytes(), *loaders(bytes_of(images), labels))


@right(area="vision")
def raw_pixels_go_into_a_batch_norm(trainer):
    """Pixels are floats of 0 to 255; a batch norm without weights is the first layer and scales them."""

    class NormFirst(Classifier):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.BatchNorm2d(1, affine=False), convolutions(), nn.Linear(32, 4))

    images, labels = pictures(seed=71)
    trainer(max_epochs=4).fit(NormFirst(), *loaders(bytes_of(images).float(), labels))


@right(area="vision")
def batches_are_normalised_on_the_device(trainer):
    """The loader gives bytes, and the module's batch hook turns them into standardised floats."""

    class OnDevice(Classifier):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            images, labels = batch
            return images.to(torch.float32).sub_(110).div_(40), labels

    images, labels = pictures(seed=72)
    trainer(max_epochs=4).fit(OnDevice(), *loaders(bytes_of(images), labels))


@right(area="vision", source="https://github.com/Project-MONAI/MONAI")
def tomography_values_are_windowed_by_the_model(trainer):
    """Values are Hounsfield units of -1024 to 3000; the model clips them to a window of 0 to 1."""

    class Window(Classifier):
        def forward(self, images):
            return self.net(((images + 200) / 500).clamp(0, 1) * 2 - 1)

    images, labels = pictures(seed=73)
    tissue = 80 * images + 40
    air = torch.rand(images.shape, generator=torch.Generator().manual_seed(0)) < 0.05
    trainer(max_epochs=4).fit(Window(), *loaders(tissue.masked_fill(air, -1024.0), labels))


@right(area="vision", source="https://arxiv.org/abs/1406.2283")
def depths_in_metres_with_holes(trainer):
    """Most depths are 0, which means that there is none; the error of the others is in logarithms."""

    class Depth(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(1, 24, 3, padding=1), nn.GELU(), nn.Conv2d(24, 24, 3, padding=1), nn.GELU(),
                nn.Conv2d(24, 1, 1),
            )  # fmt: skip

        def error(self, batch):
            images, depth = batch
            known = depth > 0
            difference = self.net(images)[known] - depth[known].log()
            return difference.square().mean() - 0.5 * difference.mean().square(), known.sum()

        def training_step(self, batch):
            error, count = self.error(batch)
            return {"loss": error, "weight": count}

        def validation_step(self, batch):
            error, count = self.error(batch)
            self.log("scale_invariant", error, weight=count)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    images, _ = pictures(256, seed=74)
    depth = torch.exp(1.5 + 0.5 * F.avg_pool2d(images, 3, 1, 1))
    holes = torch.rand(depth.shape, generator=torch.Generator().manual_seed(1)) < 0.8
    trainer(max_epochs=4).fit(Depth(), *loaders(images, depth.masked_fill(holes, 0.0)))


@right(area="vision", source="https://arxiv.org/abs/1606.06650")
def segmentation_from_a_few_marked_pixels(trainer):
    """Of all pixels 95 % are 255, which is ignored: annotators have marked a few points of each picture."""

    class Points(TrainModule):
        def __init__(self):
            super().__init__()
            self.down = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
            self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
            self.up = nn.Upsample(scale_factor=2)
            self.out = nn.Conv2d(32, 2, 1)

        def forward(self, images):
            fine = self.down(images)
            return self.out(torch.cat([fine, self.up(self.deep(fine))], dim=1))

        def training_step(self, batch):
            images, marks = batch
            loss = F.cross_entropy(self(images), marks, ignore_index=255)
            return {"loss": loss, "weight": (marks != 255).sum()}

        def validation_step(self, batch):
            images, marks = batch
            known = marks != 255
            right = self(images).argmax(1)[known] == marks[known]
            self.log("pixel_accuracy", right.float().mean(), weight=known.sum())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    images, labels = pictures(320, seed=75)
    masks = torch.zeros(320, 8, 8, dtype=torch.long)
    for mask, label in zip(masks, labels.tolist(), strict=True):
        mask[4 * (label // 2) :, 4 * (label % 2) :][:4, :4] = 1
    unmarked = torch.rand(masks.shape, generator=torch.Generator().manual_seed(2)) < 0.95
    trainer(max_epochs=4).fit(Points(), *loaders(images, masks.masked_fill(unmarked, 255)))


@right(area="vision", source="https://arxiv.org/abs/1710.09412")
def mixed_pictures_with_mixed_labels(trainer):
    """Training mixes pairs of pictures and has two labels for each; validation has plain pictures."""

    class Mixup(Classifier):
        def training_step(self, batch):
            images, labels = batch
            part = torch.distributions.Beta(0.4, 0.4).sample()
            order = torch.randperm(len(images))
            scores = self(part * images + (1 - part) * images[order])
            return part * F.cross_entropy(scores, labels) + (1 - part) * F.cross_entropy(
                scores, labels[order]
            )

    trainer(max_epochs=5).fit(Mixup(), *loaders(*pictures(seed=76)))


@right(area="vision", source="https://arxiv.org/abs/1905.04899")
def pasted_pictures_with_smoothed_soft_labels(trainer):
    """Targets are probabilities, mixed by area and smoothed; those of validation are class numbers."""

    class CutMix(Classifier):
        def training_step(self, batch):
            images, labels = batch
            soft = F.one_hot(labels, 4).float()
            width = int(torch.randint(0, 9, ()))
            order = torch.randperm(len(images))
            images = torch.cat([images[order, :, :, :width], images[:, :, :, width:]], dim=3)
            soft = width / 8 * soft[order] + (1 - width / 8) * soft
            return F.cross_entropy(self(images), soft, label_smoothing=0.1)

    trainer(max_epochs=5).fit(CutMix(), *loaders(*pictures(seed=77)))


class Augmented(Dataset):
    """Each picture several times in an epoch, each time moved and noisy in another way."""

    def __init__(self, images, labels, repeats):
        self.images, self.labels, self.repeats = images, labels, repeats

    def __len__(self):
        return self.repeats * len(self.images)

    def __getitem__(self, index):
        image, label = self.images[index % len(self.images)], self.labels[index % len(self.images)]
        moved = torch.roll(image, int(torch.randint(-1, 2, ())), dims=-1)
        return moved + 0.1 * torch.randn(image.shape), label


@right(area="vision", source="https://arxiv.org/abs/1901.09335")
def few_pictures_augmented_many_times(trainer):
    """Each of 40 pictures stands eight times in an epoch, with another augmentation each time."""
    images, labels = pictures(200, seed=78)
    train = DataLoader(Augmented(images[:40], labels[:40], 8), batch_size=32, shuffle=True)
    val = DataLoader(TensorDataset(images[40:], labels[40:]), batch_size=80)
    trainer(max_epochs=3).fit(Classifier(), train, val)


@right(area="vision")
def rare_classes_are_drawn_more_often(trainer):
    """A sampler draws with replacement, so that some samples repeat and others are left out in an epoch."""
    images, labels = pictures(400, seed=79)
    keep = torch.nonzero((labels != 3) | (torch.arange(400) % 5 == 0)).flatten()
    images, labels = images[keep], labels[keep]
    cut = len(keep) * 3 // 4
    train = TensorDataset(images[:cut], labels[:cut])
    weights = 1.0 / labels[:cut].bincount().float()
    sampler = WeightedRandomSampler(weights[labels[:cut]].tolist(), num_samples=cut)
    val = DataLoader(TensorDataset(images[cut:], labels[cut:]), batch_size=64)
    trainer(max_epochs=4).fit(Classifier(), DataLoader(train, batch_size=32, sampler=sampler), val)


@right(area="vision")
def training_samples_are_evaluated_apart(trainer):
    """A part of the training samples is evaluated too, under a name of its own, to see the gap."""

    class Pictures(DataModule):
        def setup(self, stage):
            self.data = TensorDataset(*pictures(320, seed=80))

        def train_dataloader(self):
            return DataLoader(Subset(self.data, range(240)), batch_size=32, shuffle=True)

        def val_dataloader(self):
            return DataLoader(Subset(self.data, range(240, 320)), batch_size=80)

    data = Pictures()
    data.setup("fit")
    seen = DataLoader(Subset(data.data, range(64)), batch_size=64)
    trainer(max_epochs=4, callbacks=[Evaluator(seen, "training_part")]).fit(Classifier(), datamodule=data)


@right(area="vision")
def strokes_on_black(trainer):
    """Nine of ten pixels are 0 and the others 1: the pictures are sparse, as handwriting is."""
    images, labels = pictures(400, seed=81, noise=0.5)
    trainer(max_epochs=6).fit(Classifier(), *loaders((images > 1.5).float(), labels))


@right(area="vision")
def two_sources_of_another_brightness(trainer):
    """Half of the pictures are from a darker camera; each is standardised by itself in the dataset."""

    class Standardised(Dataset):
        def __init__(self, images, labels):
            self.images, self.labels = images, labels

        def __len__(self):
            return len(self.images)

        def __getitem__(self, index):
            image = self.images[index].float()
            return (image - image.mean()) / (image.std() + 1e-6), self.labels[index]

    images, labels = pictures(320, seed=82)
    bright, dark = Standardised(bytes_of(images[:160]), labels[:160]), images[160:] * 4 + 20
    data = ConcatDataset([bright, Standardised(dark, labels[160:])])
    trainer(max_epochs=4).fit(Classifier(), *split(data))
