"""What ``strategy="auto"`` becomes: whether a model's states fit a device, as strategies describe it."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from .base import Strategy
from .ddp import DDP
from .deepspeed.engine import DeepSpeed
from .estimate.description import Layout, RankBytes
from .estimate.model_bytes import ModelBytes
from .fsdp import FSDP, HSDP
from .machine.devices import device_memory
from .single import Single

_SHARE = 0.9  # activations need the rest, and more
_OFFLOADED = "FSDP(cpu_offload=True)"

_SEVERAL: dict[str, Callable[[], Strategy]] = {
    "ddp": DDP,
    "fsdp": FSDP,
    "hsdp": HSDP,
    **{f"deepspeed_stage_{stage}": lambda stage=stage: DeepSpeed(stage) for stage in range(4)},  # type: ignore[misc]
}
_HOSTED: dict[str, Callable[[], Strategy]] = {
    _OFFLOADED: lambda: FSDP(cpu_offload=True),
    **{
        f"deepspeed_stage_{stage}_offload": lambda stage=stage: DeepSpeed(stage, offload=True)  # type: ignore[misc]
        for stage in (1, 2, 3)
    },
}
DECISION = ("single", "ddp", "fsdp", _OFFLOADED)
"""In which order strategies are thought of: each needs less memory than the one before, and more time."""


def estimated_strategies(ranks: int) -> dict[str, Strategy]:
    """The strategies that an estimate shows for so many ranks, from the simplest on.

    Args:
        ranks: How many.

    Example:
        >>> list(estimated_strategies(1))[:2]
        ['single', 'FSDP(cpu_offload=True)']
    """
    several = _SEVERAL if ranks > 1 else {}
    found = {name: make() for name, make in {"single": Single, **several, **_HOSTED}.items()}
    if ranks % 2:
        found.pop("hsdp", None)  # by default it has two groups, or one for each machine
    return found


def state_bytes(module: nn.Module) -> int:
    """Bytes that parameters, gradients and two moments of an Adam optimizer need on one device.

    Activations come on top and are not known beforehand.
    """
    return Single().description.states(ModelBytes.of(module), Layout(1)).total


def states_per_rank(module: nn.Module, ranks: int) -> dict[str, RankBytes]:
    """What each rank holds of parameters, gradients and Adam's moments under each strategy.

    In one precision throughout; of what is not spread over the ranks each has all.

    Args:
        module: Its parameters are counted; they may be on the meta device.
        ranks: How many.

    Returns:
        By the strategy's name.

    Example:
        >>> found = states_per_rank(torch.nn.Linear(10, 10), ranks=2)
        >>> found["single"].total, found["deepspeed_stage_1"].total
        (1760, 1320)
    """
    model, layout = ModelBytes.of(module), Layout(ranks)
    return {
        name: one.description.states(model, layout) for name, one in estimated_strategies(ranks).items()
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
