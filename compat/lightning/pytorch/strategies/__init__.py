"""Strategies under Lightning's names: each is one of ours."""

from __future__ import annotations

from typing import Any

from .....strategies import DDP, FSDP, DeepSpeed, Single, Strategy
from ...translation.refusals import refuse_import

__all__ = ["DDPStrategy", "DeepSpeedStrategy", "FSDPStrategy", "SingleDeviceStrategy", "Strategy"]


def DDPStrategy(
    *args: Any,
    find_unused_parameters: bool | None = None,
    static_graph: bool = False,
    gradient_as_bucket_view: bool = True,
    bucket_cap_mb: float | None = None,
    **accepted: Any,
) -> DDP:
    """Replicas of the model.

    Args:
        *args: Accepted.
        find_unused_parameters: As torch's; None: step 1 shows.
        static_graph: As torch's.
        gradient_as_bucket_view: As torch's.
        bucket_cap_mb: As torch's.
        **accepted: ``process_group_backend``, ``timeout`` and the like, which the run chooses itself.
    """
    return DDP(
        find_unused_parameters=find_unused_parameters,
        static_graph=static_graph,
        gradient_as_bucket_view=gradient_as_bucket_view,
        bucket_cap_mb=bucket_cap_mb,
    )


def FSDPStrategy(*args: Any, cpu_offload: Any = False, **accepted: Any) -> FSDP:
    """A model in shards, by torch's ``fully_shard``; its repeated blocks are the units.

    Args:
        *args: Accepted.
        cpu_offload: Keep shards in the host's memory.
        **accepted: ``auto_wrap_policy``, ``sharding_strategy`` and the like, which are chosen here.
    """
    return FSDP(cpu_offload=bool(cpu_offload))


def DeepSpeedStrategy(
    *args: Any, stage: int | None = None, config: Any = None, **accepted: Any
) -> DeepSpeed:
    """DeepSpeed's ZeRO.

    Args:
        *args: Accepted.
        stage: 0 to 3.
        config: DeepSpeed's configuration.
        **accepted: ``offload_optimizer`` is taken; others belong into ``config``.
    """
    return DeepSpeed(stage, config, offload=bool(accepted.get("offload_optimizer")))


SingleDeviceStrategy = Single


def __getattr__(name: str) -> Any:
    refuse_import(
        __name__,
        name,
        {
            "ModelParallelStrategy": "FSDP(tensor=...) of paceline.strategies; the plan of configure_model "
            "moves into parallelize(self, mesh)",
            "XLAStrategy": "no TPU is offered",
        },
    )
