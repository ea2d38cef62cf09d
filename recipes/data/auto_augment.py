"""AutoAugment's policy for CIFAR-10 (Cubuk et al., 2019, arXiv:1805.09501, table 7), with Pillow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

Operation = tuple[str, float, int]  # name, probability, strength from 0 to 9

POLICY: tuple[tuple[Operation, Operation], ...] = (
    (("invert", 0.1, 7), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("auto_contrast", 0.5, 8), ("equalize", 0.9, 2)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 5), ("equalize", 0.5, 1)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 7), ("auto_contrast", 0.4, 8)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 3)),
    (("equalize", 0.2, 0), ("auto_contrast", 0.6, 0)),
    (("equalize", 0.2, 8), ("equalize", 0.6, 4)),
    (("color", 0.9, 9), ("equalize", 0.6, 6)),
    (("auto_contrast", 0.8, 4), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("auto_contrast", 0.9, 3)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("auto_contrast", 0.9, 2), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 8), ("invert", 0.1, 3)),
    (("translate_y", 0.7, 9), ("auto_contrast", 0.9, 1)),
)


def auto_augment(image: Tensor) -> Tensor:
    """One of the policy's 25 pairs of operations, each with its probability.

    Args:
        image: uint8, of shape (3, height, width).

    Returns:
        A new image of the same shape and dtype.
    """
    picture = Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))
    pair = POLICY[int(torch.randint(len(POLICY), ()))]
    for (name, probability, strength), draw, sign in zip(pair, torch.rand(2), torch.rand(2), strict=True):
        if draw < probability:
            picture = OPERATIONS[name](picture, strength / 9, 1 if sign < 0.5 else -1)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()


def _moved(picture: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    return picture.transform(picture.size, Image.Transform.AFFINE, matrix)


def _enhanced(kind: Callable[[Image.Image], Any]) -> Callable[..., Image.Image]:
    return lambda p, strength, sign: kind(p).enhance(1 + sign * 0.9 * strength)


_SHIFT = 150 / 331  # of the size, at full strength

# Each takes the picture, a strength from 0 to 1, and the direction, 1 or -1.
OPERATIONS: dict[str, Callable[[Image.Image, float, int], Image.Image]] = {
    "shear_x": lambda p, strength, sign: _moved(p, (1, sign * 0.3 * strength, 0, 0, 1, 0)),
    "shear_y": lambda p, strength, sign: _moved(p, (1, 0, 0, sign * 0.3 * strength, 1, 0)),
    "translate_x": lambda p, strength, sign: _moved(p, (1, 0, sign * _SHIFT * strength * p.width, 0, 1, 0)),
    "translate_y": lambda p, strength, sign: _moved(
        p, (1, 0, 0, 0, 1, sign * _SHIFT * strength * p.height)
    ),
    "rotate": lambda p, strength, sign: p.rotate(sign * 30 * strength),
    "brightness": _enhanced(ImageEnhance.Brightness),
    "color": _enhanced(ImageEnhance.Color),
    "contrast": _enhanced(ImageEnhance.Contrast),
    "sharpness": _enhanced(ImageEnhance.Sharpness),
    "posterize": lambda p, strength, sign: ImageOps.posterize(p, 8 - round(4 * strength)),
    "solarize": lambda p, strength, sign: ImageOps.solarize(p, round(255 * (1 - strength))),
    "auto_contrast": lambda p, strength, sign: ImageOps.autocontrast(p),
    "equalize": lambda p, strength, sign: ImageOps.equalize(p),
    "invert": lambda p, strength, sign: ImageOps.invert(p),
}
