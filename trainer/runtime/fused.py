"""What a fused optimizer means for the non-finite check on an accelerator."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.optim import Adam, Optimizer

from ...strategies.machine.devices import has_fused_kernels


def is_fused(optimizer: Optimizer) -> bool:
    """Whether all of its parameters are updated in one kernel."""
    return all(group.get("fused") for group in optimizer.param_groups)


def unfused_note(optimizers: Iterable[Optimizer], device: torch.device) -> str:
    """What an Adam or AdamW that is not fused costs on ``device``, and the cure; "" where it costs nothing.

    A fused one skips a non-finite update by a flag on the device; for others the host has to read it.
    """
    if not has_fused_kernels(device):
        return ""
    names = {type(o).__name__: None for o in optimizers if isinstance(o, Adam) and not is_fused(o)}
    return "; ".join(
        f"{name} is not fused: the non-finite check waits for the device in each step; "
        f"{name}(..., fused=True) avoids that"
        for name in names
    )
