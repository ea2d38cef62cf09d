"""Whether a model's states fit a device, by the known formulas."""

from __future__ import annotations

from torch import nn

from .base import Strategy
from .devices import device_memory
from .fsdp import FSDP

_SHARE = 0.9  # activations need the rest, and more


def state_bytes(module: nn.Module) -> int:
    """Bytes that parameters, gradients and two moments of an Adam optimizer need on one device.

    With P trained parameters of 4 bytes these are 16 P (Rajbhandari et al., "ZeRO", 2020, section 3, for
    one precision throughout). Activations come on top and are not known beforehand.
    """
    everything = sum(p.numel() * p.element_size() for p in module.parameters())
    trained = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    return everything + 3 * trained


def choose_strategy(strategy: Strategy, module: nn.Module) -> tuple[Strategy, str | None]:
    """What ``strategy="auto"`` becomes once the module is known, and why if it is another one.

    Args:
        strategy: The one ``make_strategy("auto")`` made, attached.
        module: Its parameters are counted; they may be on the meta device.

    Returns:
        ``strategy`` and None where the states fit, else a new ``FSDP`` and a line with the reason.

    Example:
        >>> single = Trainer(strategy="single").strategy
        >>> chosen, reason = choose_strategy(single, Net())
        >>> chosen is single, reason
        (True, None)
    """
    environment = strategy.environment
    needed, there = state_bytes(module), device_memory(environment.device)
    if environment.device.type == "cpu":
        there //= environment.local_world_size
    if needed <= _SHARE * there:
        return strategy, None
    return FSDP(), (
        f"strategy fsdp: parameters, gradients and Adam's moments would need {needed / 2**30:.1f} GiB on "
        f"each device, and it has {there / 2**30:.1f}"
    )
