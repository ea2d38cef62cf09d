"""Generators of images by class: the small images they learn from, and what their images are judged by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from paceline import TrainModule
from paceline.recipes.data.images import cifar10_or_digits

CLASSES = 10


class NoisyImages(Dataset[tuple[Tensor, ...]]):
    """An image, its label and numbers of a normal distribution.

    They are drawn where the sample is read, from its own seed: two ranks get those of one device.

    Args:
        images: uint8 (n, channels, size, size), with their labels.
        noise: The shape of the numbers for an image; None: that of an image.
        uniform: So many numbers from 0 to 1 beside them.
    """

    def __init__(
        self, images: TensorDataset, noise: tuple[int, ...] | None = None, uniform: int = 0
    ) -> None:
        self.images, self.uniform = images, uniform
        self.noise = images[0][0].shape if noise is None else noise

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return *self.images[index], torch.randn(self.noise), torch.rand(self.uniform)


class ClassGenerator(TrainModule):
    """The base of modules that generate images of a class; validation judges the images.

    A held-out image gets the class of the generated image that is most similar to it. ``val/accuracy`` is
    the part that is right: it falls where images look like another class, and where they look all the same
    (Ravuri and Vinyals, 2019, arXiv:1905.10887, with the nearest neighbour as the classifier).

    Args:
        noise: The shape of the numbers that an image is generated from.
        per_class: Images of each class that a validation generates.
    """

    noise: Tensor
    classes: Tensor

    def __init__(self, noise: tuple[int, ...], per_class: int) -> None:
        super().__init__()
        drawn = torch.randn(per_class * CLASSES, *noise, generator=torch.Generator().manual_seed(0))
        self.register_buffer("noise", drawn, persistent=False)
        self.register_buffer("classes", torch.arange(CLASSES).repeat(per_class), persistent=False)

    def generate(self, noise: Tensor, labels: Tensor) -> Tensor:
        """Images (n, channels, size, size) from -1 to 1."""
        raise NotImplementedError

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:  # within a step, where strategies that shard weights bring them together
            generated = self.generate(self.noise, self.classes)
            self.log_image("samples", generated[: CLASSES**2].float() / 2 + 0.5)
            self.generated = generated.flatten(1).float()
        images, labels = scaled(batch[0]).flatten(1), batch[1]
        nearest = torch.cdist(images, self.generated).argmin(1)
        self.log("val/accuracy", (self.classes[nearest] == labels).float().mean(), weight=len(labels))


def scaled(images: Tensor) -> Tensor:
    """uint8 as floats from -1 to 1."""
    return images.float() / 127.5 - 1


def images_by_class(data: str, folder: Path) -> tuple[TensorDataset, TensorDataset]:
    """uint8 images (n, channels, size, size) with their labels: to learn from, and held out.

    Args:
        data: ``digits``: scikit-learn's, 8x8 and grey. ``cifar10``: 32x32 in colour. ``auto``: CIFAR-10
            where its files exist or can be downloaded.
        folder: Where CIFAR-10's files are, or are downloaded to.

    Raises:
        PacelineError: for data that cannot be had.
    """
    _, (train, held_out) = cifar10_or_digits(data, folder, size=8, channels=1)
    return as_tensors(*train), as_tensors(*held_out)


def as_tensors(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> TensorDataset:
    """As one dataset."""
    return TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
