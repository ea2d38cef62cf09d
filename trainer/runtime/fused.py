"""Lets torch's own optimizers update all parameters in one kernel on an accelerator.

Torch fuses only where it is asked to. Where the user has asked for nothing we do: it is the fastest of its
three ways, and the one under which a step that is not finite is left out without waiting for the device. On
a CPU all stays as torch has it: there the numbers are those of the loop written by hand, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from ...strategies.base import parameters_of


def choose_fused(optimizers: Iterable[Optimizer]) -> None:
    """Do what ``fused=True`` would have done at construction, where nothing else was chosen there.

    Adam and AdamW only: a fused SGD takes no sparse gradients, no momentum that begins late, no DTensors.
    """
    for optimizer in optimizers:
        if type(optimizer) not in (Adam, AdamW) or optimizer.state:
            continue
        if any(_is_chosen(group) for group in optimizer.param_groups):
            continue
        if not all(_is_usual(parameter) for parameter in parameters_of(optimizer)):
            continue
        for settings in (*optimizer.param_groups, optimizer.defaults):
            settings["fused"] = True
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]


def is_fused(optimizer: Optimizer) -> bool:
    """Whether all of its parameters are updated in one kernel."""
    return all(group.get("fused") for group in optimizer.param_groups)


def _is_chosen(group: dict[str, object]) -> bool:
    return group["fused"] is not None or group["foreach"] is not None or bool(group["differentiable"])


def _is_usual(parameter: Tensor) -> bool:
    """Floats without gaps: fused kernels take gradients of the parameter's own strides only."""
    local: Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return local.is_floating_point() and local.is_contiguous()
