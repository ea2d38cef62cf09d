"""Whether a model's states fit a device, by the known formulas."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from .base import Strategy
from .devices import device_memory
from .fsdp import FSDP
from .repeated_blocks import find_units

_SHARE = 0.9  # activations need the rest, and more


def state_bytes(module: nn.Module) -> int:
    """Bytes that parameters, gradients and two moments of an Adam optimizer need on one device.

    With P trained parameters of 4 bytes these are 16 P (Rajbhandari et al., "ZeRO", 2020, section 3, for
    one precision throughout). Activations come on top and are not known beforehand.
    """
    everything = sum(p.numel() * p.element_size() for p in module.parameters())
    trained = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    return everything + 3 * trained


@dataclass(frozen=True)
class StateBytes:
    """What a rank holds of a model's states, in bytes; activations come on top.

    Attributes:
        parameters: Of all parameters, trained or not.
        gradients: Of the trained ones.
        optimizer: Two moments of each trained one, as Adam has them.
        gathered: The largest part that is made whole for its computation, where parameters are sharded.

    Example:
        >>> StateBytes(parameters=440, gradients=440, optimizer=880).total
        1760
    """

    parameters: int
    gradients: int
    optimizer: int
    gathered: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer + self.gathered


def states_per_rank(module: nn.Module, ranks: int) -> dict[str, StateBytes]:
    """What each rank holds under each strategy, in one precision throughout.

    The formulas of Rajbhandari et al., "ZeRO", 2020, section 3 and 5, with N the number of ranks.

    Args:
        module: Its parameters are counted; they may be on the meta device.
        ranks: N.

    Returns:
        By the strategy's name.

    Example:
        >>> found = states_per_rank(torch.nn.Linear(10, 10), ranks=2)
        >>> found["single"].total, found["deepspeed_stage_1"].total
        (1760, 1320)
    """
    sizes = {p: p.numel() * p.element_size() for p in module.parameters()}
    everything, trained = sum(sizes.values()), sum(size for p, size in sizes.items() if p.requires_grad)
    units = [sum(sizes[p] for p in unit.parameters()) for unit in find_units(module)]
    whole = max([everything - sum(units), *units])
    part, trained_part = -(-everything // ranks), -(-trained // ranks)
    sharded = StateBytes(part, trained_part, 2 * trained_part, whole if ranks > 1 else 0)
    return {
        "single": StateBytes(everything, trained, 2 * trained),
        "ddp": StateBytes(everything, trained, 2 * trained),
        "deepspeed_stage_1": StateBytes(everything, trained, 2 * trained_part),
        "deepspeed_stage_2": StateBytes(everything, trained_part, 2 * trained_part),
        "deepspeed_stage_3": sharded,
        "fsdp": sharded,
    }


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
