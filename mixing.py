"""MixUp and CutMix: batches whose samples are mixed with each other, and so are their labels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Beta
from torch.nn.functional import one_hot

from .common.argument_checks import ABOVE_ZERO, COUNT, check_arguments
from .errors import PacelineError

__all__ = [
    "CutMix",
    "MixUp",
]


class MixUp:
    """Mixes each sample with another one of its batch: ``x = t * x + (1 - t) * other``, labels likewise.

    t is drawn from Beta(alpha, alpha), once for a batch (Zhang et al. 2018,
    https://arxiv.org/abs/1710.09412). Call it in ``on_after_batch_transfer`` of a module or DataModule:
    there what it draws is seeded by the batch's position, and a resumed run draws the same.

    Args:
        classes: How many classes there are.
        alpha: Larger ones mix more.

    Raises:
        PacelineError: for arguments that are not right, and for labels that are no classes.

    Example:
        >>> x, y = MixUp(classes=3)(torch.randn(4, 2), torch.tensor([0, 1, 2, 0]))
        >>> y.shape, torch.allclose(y.sum(1), torch.ones(4))  # for cross_entropy
        (torch.Size([4, 3]), True)
    """

    def __init__(self, classes: int, alpha: float = 0.2) -> None:
        check_arguments(type(self).__name__, classes=(classes, COUNT), alpha=(alpha, ABOVE_ZERO))
        self.classes, self.alpha = classes, alpha

    def __call__(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The mixed batch.

        Args:
            inputs: Shape (samples, ...), floating point.
            labels: Class indices of shape (samples,), or parts of shape (samples, classes).

        Returns:
            Inputs of the same shape, and parts of shape (samples, classes).
        """
        share = float(Beta(self.alpha, self.alpha).sample())
        order = torch.randperm(len(inputs))
        mixed, share = self._mix(inputs, inputs[order], share)
        parts = self._parts(labels, inputs.dtype)
        return mixed, share * parts + (1 - share) * parts[order]

    def _mix(self, inputs: Tensor, others: Tensor, share: float) -> tuple[Tensor, float]:
        return share * inputs + (1 - share) * others, share

    def _parts(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        if labels.is_floating_point():
            if labels.ndim == 2 and labels.shape[1] == self.classes:
                return labels
        elif labels.ndim == 1 and (not labels.is_cpu or self._are_classes(labels)):
            return one_hot(labels, self.classes).to(dtype)
        raise PacelineError(
            f"{type(self).__name__} takes labels of {self.classes} classes",
            code="wrong-shape",
            got=f"a tensor of shape {tuple(labels.shape)}, {labels.dtype}"
            + (f", from {labels.min()} to {labels.max()}" if labels.is_cpu and labels.numel() else ""),
            allowed="class indices of shape (samples,), or parts of shape (samples, classes)",
        )

    def _are_classes(self, labels: Tensor) -> bool:
        return not labels.numel() or 0 <= int(labels.min()) <= int(labels.max()) < self.classes


class CutMix(MixUp):
    """Puts a rectangle of another image of the batch into each image; labels are mixed by its area.

    The rectangle has the batch's height and width times sqrt(1 - t), t from Beta(alpha, alpha), at a place
    that is drawn, cut off at the border (Yun et al. 2019, https://arxiv.org/abs/1905.04899).

    Args:
        classes: How many classes there are.
        alpha: Of the distribution; 1 is uniform.

    Raises:
        PacelineError: for arguments that are not right, for labels that are no classes, and for inputs that
            are no images.

    Example:
        >>> x, y = CutMix(classes=3)(torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 0]))
        >>> x.shape, y.shape
        (torch.Size([4, 3, 8, 8]), torch.Size([4, 3]))
    """

    def __init__(self, classes: int, alpha: float = 1.0) -> None:
        super().__init__(classes, alpha)

    def _mix(self, inputs: Tensor, others: Tensor, share: float) -> tuple[Tensor, float]:
        if inputs.ndim < 4:
            raise PacelineError(
                "CutMix takes images",
                code="wrong-shape",
                got=f"inputs of shape {tuple(inputs.shape)}",
                allowed="(samples, channels, height, width)",
            )
        height, width = inputs.shape[-2:]
        part = (1 - share) ** 0.5
        top, bottom = _cut(height, part)
        left, right = _cut(width, part)
        mixed = inputs.clone()
        mixed[..., top:bottom, left:right] = others[..., top:bottom, left:right]
        return mixed, 1 - (bottom - top) * (right - left) / (height * width)


def _cut(size: int, part: float) -> tuple[int, int]:
    """A stretch of ``part * size`` around a place that is drawn, cut off at the ends."""
    middle, half = int(torch.randint(size, ())), int(size * part) // 2
    return max(middle - half, 0), min(middle + half, size)
