"""Whether gradients are finite: one pass over all of them, which may divide them by the loss scale too."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..tensors.sharding import local_part
from ..torch_internals import check_and_multiply


def flag_nonfinite(gradients: list[Tensor], found: Tensor, one: Tensor) -> None:
    """Raise ``found`` above 0 where a gradient is not finite.

    Args:
        gradients: Of any kind and device; they stay as they are, to the bit.
        found: A float32 scalar, shape ().
        one: 1.0 as a float32 scalar on the device, shape ().
    """
    try:
        check_and_multiply(gradients, found, one)
    except (RuntimeError, NotImplementedError):  # sparse ones, complex ones, several devices
        for gradient in gradients:
            _flag(gradient, found)


def divide_and_flag(gradients: list[Tensor], scale: float, found: Tensor) -> None:
    """Divide gradients by ``scale`` in place, and raise ``found`` above 0 where one is not finite.

    Args:
        gradients: Of one device.
        scale: The loss scale.
        found: A float32 scalar on their device, shape ().
    """
    plain = [g for g in gradients if g.layout is torch.strided and not g.is_complex()]
    if plain:
        check_and_multiply(plain, found, torch.full_like(found, 1 / scale))
    for gradient in gradients:
        if gradient.layout is not torch.strided or gradient.is_complex():
            gradient.mul_(1 / scale)
            _flag(gradient, found)


def by_device(optimizer: Optimizer) -> dict[torch.device, list[Tensor]]:
    """The gradients of ``optimizer`` that this rank has, shards as plain tensors."""
    found: dict[torch.device, list[Tensor]] = {}
    with torch.no_grad():  # else each local part is recorded for backward
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = local_part(parameter.grad)
                    found.setdefault(gradient.device, []).append(gradient)
    return found


def _flag(gradient: Tensor, found: Tensor) -> None:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    found += (~torch.isfinite(values).all()).to(found.device)


def nan_loss(module: nn.Module) -> Tensor:
    """A scalar whose gradient is NaN for every trained parameter of ``module``."""
    parts = [(p * math.nan).sum() for p in module.parameters() if p.requires_grad]
    return torch.stack([part.float() for part in parts]).sum()
