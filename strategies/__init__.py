"""Strategies, precision plugins and the distributed environment."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..common.lazy_names import lazy_names
from ..errors import PacelineError, nearest
from ..other_trainers import called_here
from ..plugins import BUILT_IN_STRATEGIES, load, names
from .base import Strategy
from .launch.launcher import launch, start_ranks  # "launch" is the name of their package too
from .settings import StrategySettings

if TYPE_CHECKING:
    from .auto import choose_strategy, states_per_rank
    from .blocks.repeated_blocks import find_units
    from .ddp import DDP
    from .deepspeed.engine import DeepSpeed
    from .distributed import Distributed
    from .dtypes.float8 import Float8
    from .dtypes.precision import AutocastBF16, AutocastFP16, Full, Precision
    from .dtypes.precision_names import PRECISIONS, make_precision
    from .estimate.description import Collective, Description, Layout, RankBytes
    from .estimate.model_bytes import ModelBytes, Moment
    from .fsdp import FSDP, HSDP
    from .launch.environment import Environment, find_environment
    from .ranks.collectives import Collectives
    from .ranks.group_collectives import GroupCollectives
    from .single import Single
    from .streamed import Streamed
    from .weights import ShardedWeights, Weights

__all__ = [
    "DDP",
    "FSDP",
    "HSDP",
    "PRECISIONS",
    "STRATEGIES",
    "AutocastBF16",
    "AutocastFP16",
    "Collective",
    "Collectives",
    "DeepSpeed",
    "Description",
    "Distributed",
    "Environment",
    "Float8",
    "Full",
    "GroupCollectives",
    "Layout",
    "ModelBytes",
    "Moment",
    "Precision",
    "RankBytes",
    "ShardedWeights",
    "Single",
    "Strategy",
    "StrategySettings",
    "Streamed",
    "Weights",
    "choose_strategy",
    "find_environment",
    "find_units",
    "launch",
    "make_precision",
    "make_strategy",
    "start_ranks",
    "states_per_rank",
]

_HOMES = {
    "DDP": "ddp",
    "DeepSpeed": "deepspeed.engine",
    "Distributed": "distributed",
    "Collective": "estimate.description",
    "Description": "estimate.description",
    "Layout": "estimate.description",
    "RankBytes": "estimate.description",
    "ModelBytes": "estimate.model_bytes",
    "Moment": "estimate.model_bytes",
    "Float8": "dtypes.float8",
    "FSDP": "fsdp",
    "HSDP": "fsdp",
    "Environment": "launch.environment",
    "find_environment": "launch.environment",
    "choose_strategy": "auto",
    "states_per_rank": "auto",
    "AutocastBF16": "dtypes.precision",
    "AutocastFP16": "dtypes.precision",
    "Full": "dtypes.precision",
    "Precision": "dtypes.precision",
    "PRECISIONS": "dtypes.precision_names",
    "make_precision": "dtypes.precision_names",
    "find_units": "blocks.repeated_blocks",
    "Collectives": "ranks.collectives",
    "GroupCollectives": "ranks.group_collectives",
    "Single": "single",
    "Streamed": "streamed",
    "ShardedWeights": "weights",
    "Weights": "weights",
}
_CLASSES = {name.lower(): name for name in ("Single", "DDP", "FSDP", "HSDP", "DeepSpeed", "Streamed")}
STRATEGIES = BUILT_IN_STRATEGIES


def make_strategy(strategy: str | Strategy, world_size: int = 1) -> Strategy:
    """The strategy of that name, built in or an installed entry point; a ``Strategy`` is taken as it is.

    ``"auto"`` is ``Single`` in a world of one and ``DDP`` in a larger one, until ``choose_strategy`` has
    seen the module.

    Args:
        strategy: A name of ``STRATEGIES``, of an entry point in ``paceline.strategies``, or an object.
        world_size: The number of ranks it is to train on.

    Returns:
        The object, not yet attached to a device.

    Raises:
        PacelineError: for a name that is none, an entry point that cannot be used, and several ranks under
            a strategy of one device.

    Example:
        >>> make_strategy("auto", world_size=8).name
        'ddp'
        >>> make_strategy("deepspeed_stage_3_offload").offload
        True
    """
    if strategy == "auto":
        return _built_in("ddp" if world_size > 1 else "single")
    found = strategy if isinstance(strategy, Strategy) else _build(strategy)
    if world_size > 1 and not found.many_ranks:
        raise PacelineError(
            f"strategy {found.name!r} computes on one device",
            code="strategy-not-suited",
            got=f"{world_size} ranks",
            fix='devices=1, or strategy="auto"',
        )
    return found


def _build(strategy: str) -> Strategy:
    if strategy in STRATEGIES:
        return _built_in(strategy)
    installed = names("strategy")
    if strategy in installed:
        found: Strategy = load("strategy", strategy, Strategy)
        return found
    elsewhere = called_here("strategy", strategy.lower().replace("-", "_"))
    if elsewhere is not None:
        raise PacelineError(
            f"strategy: there is no {strategy!r}", code="unknown-strategy", got=strategy, fix=elsewhere
        )
    known = [*STRATEGIES, *installed]
    old = strategy in ("dp", "data_parallel", "dataparallel")
    raise PacelineError(
        f"strategy: there is no {strategy!r}"
        + (": torch's DataParallel runs every model in one process, slower than one device" if old else ""),
        code="unknown-strategy",
        got=strategy,
        allowed=", ".join(known) + ", or an object of paceline.strategies.Strategy",
        meant="ddp" if old else nearest(strategy, known),
        fix='strategy="ddp" starts a process for each device' if old else None,
    )


def _built_in(strategy: str) -> Strategy:
    """Of ``deepspeed_stage_3_offload``: ``DeepSpeed(3, offload=True)``."""
    name, _, stage = strategy.partition("_stage_")
    build: Any = getattr(import_module(__name__), _CLASSES[name])
    made: Strategy = build(int(stage[0]), offload=stage.endswith("offload")) if stage else build()
    return made


if not TYPE_CHECKING:  # a type checker is to know which names there are
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
