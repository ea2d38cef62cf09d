"""Scalars of a device as numbers, brought in one copy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def on_host(scalars: Sequence[Tensor]) -> list[float]:
    """Tensors of one element each as numbers, in double precision where the device has it.

    Args:
        scalars: At least one; a device other than the CPU is waited for once.

    Example:
        >>> on_host([torch.tensor(0.5), torch.tensor([2])])
        [0.5, 2.0]
    """
    device = next((one.device for one in scalars if not one.is_cpu), scalars[0].device)
    wide = torch.float32 if device.type == "mps" else torch.float64  # mps has no float64
    found: list[float] = torch.stack(
        [one.detach().to(device, wide).reshape(()) for one in scalars]
    ).tolist()
    return found
