"""``FSDPStrategy`` with Lightning's arguments."""

from __future__ import annotations

from typing import Any

from .....strategies import FSDP
from .named import LightningStrategy


class FSDPStrategy(FSDP, metaclass=LightningStrategy):
    """A model in shards, by torch's ``fully_shard``; its repeated blocks are the units.

    Args:
        accelerator: Accepted: the Trainer's counts, and so for the others.
        parallel_devices: Accepted.
        cluster_environment: Accepted.
        checkpoint_io: Accepted.
        precision_plugin: Accepted.
        process_group_backend: Accepted: the run chooses it.
        timeout: Accepted.
        cpu_offload: Keep shards in the host's memory: a switch, or torch's ``CPUOffload``.
        mixed_precision: Accepted: the Trainer's precision counts.
        auto_wrap_policy: Accepted: the units are chosen here.
        activation_checkpointing: Anything recomputes the activations of the units.
        activation_checkpointing_policy: The same.
        sharding_strategy: Accepted: parameters are in shards between uses; ``"SHARD_GRAD_OP"`` keeps them
            whole from forward to backward.
        state_dict_type: Accepted: checkpoints are in shards, and are read under any strategy.
        device_mesh: Accepted.
        **accepted: Other arguments of torch's ``FullyShardedDataParallel``.
    """

    def __init__(
        self,
        accelerator: Any = None,
        parallel_devices: Any = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        process_group_backend: str | None = None,
        timeout: Any = None,
        cpu_offload: Any = None,
        mixed_precision: Any = None,
        auto_wrap_policy: Any = None,
        activation_checkpointing: Any = None,
        activation_checkpointing_policy: Any = None,
        sharding_strategy: Any = "FULL_SHARD",
        state_dict_type: str = "full",
        device_mesh: Any = None,
        **accepted: Any,
    ) -> None:
        name = getattr(sharding_strategy, "name", sharding_strategy)
        super().__init__(
            cpu_offload=bool(getattr(cpu_offload, "offload_params", cpu_offload)),
            activation_checkpointing=bool(activation_checkpointing_policy or activation_checkpointing),
            reshard_after_forward=False if name == "SHARD_GRAD_OP" else None,
        )
