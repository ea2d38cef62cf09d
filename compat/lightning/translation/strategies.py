"""Lightning's names of strategies as ours."""

from __future__ import annotations

from typing import Any

from ....strategies import DDP, FSDP

_SAME = {"ddp_spawn": "ddp", "ddp_fork": "ddp", "ddp_notebook": "ddp", "single_device": "single"}


def strategy_of(given: Any) -> Any:
    """Our strategy, or its name, for Lightning's.

    Args:
        given: A name or an object; one that is not known is passed on as it is.
    """
    if not isinstance(given, str):
        return given
    base, unused, switch = given.partition("_find_unused_parameters_")
    if unused and base.startswith("ddp"):
        return DDP(find_unused_parameters=switch == "true")
    if given == "fsdp_cpu_offload":
        return FSDP(cpu_offload=True)
    return _SAME.get(given, given)
