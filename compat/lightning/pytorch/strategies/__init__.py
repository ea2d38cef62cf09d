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
    process_group_backend: str | None = None,
    timeout: Any = None,
    start_method: str | None = None,
    broadcast_buffers: bool = True,
    accelerator: Any = None,
    parallel_devices: Any = None,
    cluster_environment: Any = None,
    checkpoint_io: Any = None,
    precision_plugin: Any = None,
    **accepted: Any,
) -> DDP:
    """Replicas of the model.

    Args:
        *args: Accepted.
        find_unused_parameters: As torch's; None: step 1 shows.
        static_graph: As torch's.
        gradient_as_bucket_view: As torch's.
        bucket_cap_mb: As torch's.
        process_group_backend: Accepted: the run chooses it, and so the others.
        timeout: Accepted.
        start_method: Accepted.
        broadcast_buffers: Accepted.
        accelerator: Accepted.
        parallel_devices: Accepted.
        cluster_environment: Accepted.
        checkpoint_io: Accepted.
        precision_plugin: Accepted.
        **accepted: Others.
    """
    return DDP(
        find_unused_parameters=find_unused_parameters,
        static_graph=static_graph,
        gradient_as_bucket_view=gradient_as_bucket_view,
        bucket_cap_mb=bucket_cap_mb,
    )


def FSDPStrategy(
    *args: Any,
    cpu_offload: Any = False,
    auto_wrap_policy: Any = None,
    activation_checkpointing_policy: Any = None,
    activation_checkpointing: Any = None,
    sharding_strategy: Any = "FULL_SHARD",
    state_dict_type: str = "full",
    mixed_precision: Any = None,
    process_group_backend: str | None = None,
    timeout: Any = None,
    device_mesh: Any = None,
    accelerator: Any = None,
    parallel_devices: Any = None,
    cluster_environment: Any = None,
    checkpoint_io: Any = None,
    precision_plugin: Any = None,
    **accepted: Any,
) -> FSDP:
    """A model in shards, by torch's ``fully_shard``; its repeated blocks are the units.

    Args:
        *args: Accepted.
        cpu_offload: Keep shards in the host's memory.
        auto_wrap_policy: Accepted: the units are chosen here, and so are the others.
        activation_checkpointing_policy: Any recomputes activations of the units.
        activation_checkpointing: The same.
        sharding_strategy: Accepted.
        state_dict_type: Accepted.
        mixed_precision: Accepted.
        process_group_backend: Accepted.
        timeout: Accepted.
        device_mesh: Accepted.
        accelerator: Accepted.
        parallel_devices: Accepted.
        cluster_environment: Accepted.
        checkpoint_io: Accepted.
        precision_plugin: Accepted.
        **accepted: Others.
    """
    recomputed = bool(activation_checkpointing_policy or activation_checkpointing)
    return FSDP(cpu_offload=bool(cpu_offload), activation_checkpointing=recomputed)


def DeepSpeedStrategy(
    *args: Any,
    stage: int | None = None,
    config: Any = None,
    offload_optimizer: bool = False,
    offload_parameters: bool = False,
    **accepted: Any,
) -> DeepSpeed:
    """DeepSpeed's ZeRO.

    Args:
        *args: Accepted.
        stage: 0 to 3.
        config: DeepSpeed's configuration.
        offload_optimizer: Update in the host's memory.
        offload_parameters: The same, and keep parameters there.
        **accepted: Others belong into ``config``.
    """
    return DeepSpeed(stage, config, offload=offload_optimizer or offload_parameters)


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
