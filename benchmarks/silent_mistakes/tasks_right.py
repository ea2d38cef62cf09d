"""Small pictures with classes, and networks for them, for right programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split


def pictures(
    samples: int = 320,
    classes: int = 4,
    size: int = 8,
    channels: int = 1,
    seed: int = 0,
    noise: float = 0.8,
) -> tuple[Tensor, Tensor]:
    """Standardised noise (n, channels, size, size) with a bright patch whose place is the class (n)."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (samples,), generator=generator)
    images = noise * torch.randn(samples, channels, size, size, generator=generator)
    half = size // 2
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = half * (label // 2 % 2), half * (label % 2)
        image[:, top : top + half, left : left + half] += 1.0 if label < 4 else -1.0
    return (images - images.mean()) / images.std(), labels


def bytes_of(images: Tensor) -> Tensor:
    """The pictures as files have them: whole numbers of 0 to 255."""
    return (images * 40 + 110).clamp(0, 255).to(torch.uint8)


def loaders(*tensors: Tensor, batch: int = 32, validation: float = 0.25) -> tuple[DataLoader, DataLoader]:
    """A training loader that shuffles, and one with other samples for validation."""
    return split(TensorDataset(*tensors), batch, validation)


def only_training(*tensors: Tensor, batch: int = 32) -> DataLoader:
    """All samples for training, shuffled."""
    return DataLoader(TensorDataset(*tensors), batch, shuffle=True)


def split(data: Dataset, batch: int = 32, validation: float = 0.25) -> tuple[DataLoader, DataLoader]:
    """Likewise of a dataset."""
    train, val = random_split(data, [1 - validation, validation], torch.Generator().manual_seed(1))
    return DataLoader(train, batch, shuffle=True), DataLoader(val, 64)


def convolutions(
    channels: int = 1, width: int = 16, norm: Callable[[int], nn.Module] = nn.BatchNorm2d
) -> nn.Sequential:
    """Features (n, 2 * width) of pictures."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        norm(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
        norm(2 * width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, 2 * width),
        nn.ReLU(),
    )


def pretrained(channels: int = 1, width: int = 16) -> nn.Sequential:
    """``convolutions`` that have learned eight classes of other pictures, as if from a hub."""
    backbone = convolutions(channels, width)
    backbone.load_state_dict(_pretrained_weights(channels, width))
    return backbone


@cache
def _pretrained_weights(channels: int, width: int) -> dict[str, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        images, labels = pictures(256, classes=8, channels=channels, seed=7)
        backbone = convolutions(channels, width)
        net = nn.Sequential(backbone, nn.Linear(2 * width, 8))
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
        for step in range(40):
            rows = slice(step % 4 * 64, step % 4 * 64 + 64)
            optimizer.zero_grad()
            cross_entropy(net(images[rows]), labels[rows]).backward()
            optimizer.step()
    return {name: value.clone() for name, value in backbone.state_dict().items()}


def accuracy(scores: Tensor, labels: Tensor) -> Tensor:
    """The part of samples whose highest score is that of the label."""
    return (scores.argmax(1) == labels).float().mean()
