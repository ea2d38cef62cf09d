"""Small images as a dataset, with the crop and flip that CIFAR-10 is trained with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from paceline import PacelineError
from paceline.recipes.data import cifar10

Split = tuple[NDArray[np.uint8], NDArray[np.int64]]


class Images(Dataset[tuple[Tensor, Tensor]]):
    """uint8 images (n, 3, 32, 32) as floats of mean 0 and deviation 1 per channel.

    Args:
        mean: The mean of each channel, of pixels from 0 to 1.
        std: The standard deviation of each channel, likewise.
        crop: Pixels of padding before a random crop to the old size; 0 for none.
        flip: Mirror half of the images left to right.
        augment: Changes an image of uint8 (3, 32, 32) before that.
    """

    def __init__(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[np.int64],
        mean: list[float],
        std: list[float],
        crop: int = 0,
        flip: bool = False,
        augment: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.pixels, self.labels = torch.from_numpy(images), torch.from_numpy(labels)
        self.statistics = mean, std
        self.images = normalised(self.pixels, mean, std)
        self.crop, self.flip, self.augment = crop, flip, augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        if self.augment is not None:
            image = normalised(self.augment(self.pixels[index]), *self.statistics)
        if self.crop:
            size = image.shape[-1]
            padded = F.pad(image, [self.crop] * 4)
            top, left = torch.randint(2 * self.crop + 1, (2,)).tolist()
            image = padded[:, top : top + size, left : left + size]
        if self.flip and torch.rand(()) < 0.5:
            image = image.flip(-1)
        return image, self.labels[index]


def channel_statistics(images: NDArray[np.uint8]) -> tuple[list[float], list[float]]:
    """Mean and deviation per channel, of pixels from 0 to 1."""
    pixels = images.astype(np.float32) / 255
    return pixels.mean((0, 2, 3)).tolist(), pixels.std((0, 2, 3)).tolist()


def normalised(pixels: Tensor, mean: list[float], std: list[float]) -> Tensor:
    """uint8 images (..., 3, height, width) as floats of mean 0 and deviation 1 per channel."""
    return (pixels.float() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)


def few_labels(labels: NDArray[np.int64], per_class: int) -> NDArray[np.int64]:
    """The indices of the first images of each class."""
    return np.concatenate([np.flatnonzero(labels == one)[:per_class] for one in np.unique(labels)])


def digits(size: int = 32, channels: int = 3) -> tuple[Split, Split]:
    """scikit-learn's 1797 real handwritten digits of 8x8, scaled to ``size``: four fifths to train on."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError:
        raise PacelineError(
            "data=digits needs scikit-learn", code="package-missing", fix="pip install 'paceline[recipes]'"
        ) from None
    data = load_digits()
    small = torch.from_numpy(data.images).float()[:, None] / 16
    large = F.interpolate(small, size=size, mode="bilinear", align_corners=False)
    images = (large * 255).round().clamp(0, 255).to(torch.uint8).expand(-1, channels, -1, -1).numpy()
    parts = train_test_split(
        images, data.target.astype(np.int64), test_size=0.2, random_state=0, stratify=data.target
    )
    return (parts[0], parts[2]), (parts[1], parts[3])


def cifar10_or_digits(
    data: str, folder: Path, size: int = 32, channels: int = 3
) -> tuple[str, tuple[Split, Split]]:
    """The name of the data set that was taken, and its training and test split.

    Args:
        data: ``cifar10``, ``digits``, or ``auto``: CIFAR-10 if it is there or can be fetched, else digits.
        folder: Where CIFAR-10's files are, or are downloaded to.
        size: Of digits; CIFAR-10 has 32x32x3.
        channels: Likewise.

    Raises:
        PacelineError: for ``cifar10`` without its files and without a network.
    """
    folder = folder.expanduser()
    if data in ("auto", "cifar10"):
        try:
            if not cifar10.is_present(folder):
                cifar10.download(folder)
            return "cifar10", (cifar10.load(folder, True), cifar10.load(folder, False))
        except PacelineError as error:
            if data == "cifar10":
                raise
            reason = str(error).splitlines()[0]
            print(
                f"!! {reason}\n"
                f"!! TRAINING ON HANDWRITTEN DIGITS INSTEAD (scikit-learn, {size}x{size}x{channels}).\n"
                f"!! For CIFAR-10 put its files into {folder}; data=digits makes this line go away."
            )
    return "digits", digits(size, channels)
