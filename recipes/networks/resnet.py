"""Residual networks for images of 32 x 32 pixels."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two convolutions and a shortcut (He et al., 2015, arXiv:1512.03385)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        found = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(found)) + self.shortcut(x))


class ResNet(nn.Module):
    """Images (batch, 3, height, width) to features (batch, features), and to logits by ``head``.

    Args:
        widths: Channels of each stage; all but the first halve height and width.
        blocks: Blocks in each stage: two of four stages are ResNet-18.
        stride: Of the first convolution.
        classes: Logits.
    """

    def __init__(
        self,
        widths: tuple[int, ...] = (64, 128, 256, 512),
        blocks: int = 2,
        stride: int = 1,
        classes: int = 10,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, widths[0], 3, stride, 1, bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.ReLU(),
        ]
        channels = widths[0]
        for stage, width in enumerate(widths):
            for number in range(blocks):
                layers.append(Block(channels, width, stride=2 if stage and not number else 1))
                channels = width
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(images))
        return logits


class SpeedNet(nn.Module):
    """The network of airbench94 (github.com/KellerJordan/cifar10-airbench): 94 % in 9.9 epochs.

    Args:
        widths: Channels of the three groups of two convolutions.
        classes: Logits.
    """

    def __init__(self, widths: tuple[int, ...] = (64, 256, 256), classes: int = 10) -> None:
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2)
        self.whiten.weight.requires_grad_(False)
        nn.init.zeros_(self.whiten.bias)  # type: ignore[arg-type]
        sizes = (24, *widths)
        groups = [part for pair in pairwise(sizes) for part in _group(*pair)]
        self.body = nn.Sequential(nn.GELU(), *groups, nn.MaxPool2d(3), nn.Flatten())
        self.head = nn.Linear(widths[-1], classes, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.whiten(images))) / 9
        return logits

    @torch.no_grad()
    def whiten_as(self, images: Tensor, eps: float = 5e-4) -> None:
        """Have the first layer decorrelate patches of 2 x 2 pixels, each direction with both signs.

        Args:
            images: Normalised, of shape (n, 3, height, width).
            eps: Added to the variances.
        """
        patches = images.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5)
        patches = patches.reshape(-1, 12).float()
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches), UPLO="U")
        scaled = (vectors / (values + eps).sqrt()).T.reshape(-1, 3, 2, 2).flip(0)
        self.whiten.weight.copy_(torch.cat([scaled, -scaled]))


def _group(channels: int, width: int) -> list[nn.Module]:
    """Two convolutions, the first of which halves height and width and begins as the identity."""
    first = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    second = nn.Conv2d(width, width, 3, padding=1, bias=False)
    for layer in (first, second):
        nn.init.dirac_(layer.weight[: layer.in_channels])
    return [first, nn.MaxPool2d(2), _norm(width), nn.GELU(), second, _norm(width), nn.GELU()]


def _norm(width: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(width, eps=1e-12, momentum=0.4)
    norm.weight.requires_grad_(False)
    return norm
