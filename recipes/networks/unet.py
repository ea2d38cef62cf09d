"""A U-Net (Ronneberger et al., 2015, arXiv:1505.04597) that takes a time and a class, for diffusion."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class UNet(nn.Module):
    """Images (n, channels, height, width) to images of that shape.

    Args:
        widths: Channels at each size, each half of the one before: multiples of 8.
        blocks: Blocks at each size, on the way down and on the way up.
        channels: Of an image.
        classes: What labels are from 0 to.
    """

    def __init__(self, widths: tuple[int, ...], blocks: int, channels: int, classes: int) -> None:
        super().__init__()
        first, last, known = widths[0], widths[-1], 4 * widths[0]
        self.time = nn.Sequential(nn.Linear(first, known), nn.SiLU(), nn.Linear(known, known))
        self.classes = nn.Embedding(classes, known)
        self.read = nn.Conv2d(channels, first, 3, padding=1)
        self.blocks = blocks
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for before, width in pairwise((first, *widths)):
            inputs = (before, *[width] * (blocks - 1))
            self.down.extend(Block(each, width, known) for each in inputs)
        self.middle = Block(last, last, known)
        self.attention = Attention(last)
        for before, width in pairwise((last, *reversed(widths))):
            inputs = (before, *[width] * (blocks - 1))
            self.up.extend(Block(each + width, width, known) for each in inputs)
        last_layer = nn.Conv2d(first, channels, 3, padding=1)
        nn.init.zeros_(last_layer.weight)
        self.write = nn.Sequential(nn.GroupNorm(8, first), nn.SiLU(), last_layer)

    def forward(self, images: Tensor, time: Tensor, labels: Tensor) -> Tensor:
        """``time`` (n) is from 0 to 1, ``labels`` (n) are integers."""
        known = F.silu(self.time(waves(time, self.read.out_channels)) + self.classes(labels))
        x, seen = self.read(images), []
        for number, block in enumerate(self.down):
            if number and number % self.blocks == 0:
                x = F.avg_pool2d(x, 2)
            x = block(x, known)
            seen.append(x)
        x = self.attention(self.middle(x, known))
        for number, block in enumerate(self.up):
            if number and number % self.blocks == 0:
                x = F.interpolate(x, scale_factor=2)
            x = block(torch.cat([x, seen.pop()], 1), known)
        found: Tensor = self.write(x)
        return found


class Block(nn.Module):
    """A residual block, scaled and shifted by the time and the class."""

    def __init__(self, inputs: int, width: int, known: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, inputs), nn.SiLU(), nn.Conv2d(inputs, width, 3, padding=1)
        )
        self.known = nn.Linear(known, 2 * width)
        self.norm = nn.GroupNorm(8, width)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.skip = nn.Identity() if inputs == width else nn.Conv2d(inputs, width, 1)
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor, known: Tensor) -> Tensor:
        scale, shift = self.known(known)[:, :, None, None].chunk(2, 1)
        inner = self.norm(self.first(x)) * (1 + scale) + shift
        added: Tensor = self.skip(x) + self.second(F.silu(inner))
        return added


class Attention(nn.Module):
    """Each place of the image sees every other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.read, self.write = nn.Linear(width, 3 * width), nn.Linear(width, width)
        nn.init.zeros_(self.write.weight)

    def forward(self, x: Tensor) -> Tensor:
        places = self.norm(x).flatten(2).transpose(1, 2)
        query, key, value = self.read(places).unflatten(2, (3, 1, -1)).transpose(1, 3).unbind(2)
        seen: Tensor = self.write(F.scaled_dot_product_attention(query, key, value).squeeze(1))
        return x + seen.transpose(1, 2).reshape(x.shape)


def waves(time: Tensor, width: int) -> Tensor:
    """Cosines and sines (n, width) of times (n) from 0 to 1."""
    rates = torch.exp(torch.linspace(0, math.log(1000), width // 2, device=time.device))
    angles = time[:, None] * rates.to(time.dtype)
    return torch.cat([angles.cos(), angles.sin()], 1)
