"""Lets torch's own optimizers update all parameters in one kernel on an accelerator.

Torch fuses only where it is asked to. Where the user has asked for nothing we do: it is the fastest of its
three ways, and the one under which a step that is not finite is left out without waiting for the device. On
a CPU all stays as torch has it: there the numbers are those of the loop written by hand, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from ..strategies.base import parameters_of


def choose_fused(module: nn.Module, optimizers: Iterable[Optimizer]) -> None:
    """Fuse those that can be, whose parameters lie on an accelerator."""
    if any(getattr(part, "sparse", False) is True for part in module.modules()):
        return  # gradients of such embeddings have no fused kernel
    for optimizer in optimizers:
        devices = {parameter.device.type for parameter in parameters_of(optimizer)}
        if not devices & {"cpu", "meta"}:
            fuse(optimizer)


def fuse(optimizer: Optimizer) -> bool:
    """Do what ``fused=True`` would have done at construction, where nothing else was chosen there.

    Returns:
        False where it cannot be fused, or was chosen otherwise.
    """
    if type(optimizer) not in (Adam, AdamW, SGD) or optimizer.state:
        return False
    for group in optimizer.param_groups:
        chosen = group["fused"] is not None or group["foreach"] is not None or group["differentiable"]
        if chosen or not all(parameter.is_floating_point() for parameter in group["params"]):
            return False
    for settings in (*optimizer.param_groups, optimizer.defaults):
        settings["fused"] = True
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
    return True


def is_fused(optimizer: Optimizer) -> bool:
    """Whether all of its parameters are updated in one kernel."""
    return all(group.get("fused") for group in optimizer.param_groups)
