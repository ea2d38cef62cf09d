"""``DDPStrategy`` with Lightning's arguments."""

from __future__ import annotations

from typing import Any

from .....strategies import DDP
from .named import LightningStrategy


class DDPStrategy(DDP, metaclass=LightningStrategy):
    """Replicas of the model.

    Args:
        accelerator: Accepted: the Trainer's counts, and so for the others.
        parallel_devices: Accepted.
        cluster_environment: Accepted.
        checkpoint_io: Accepted.
        precision_plugin: Accepted.
        ddp_comm_state: Accepted: gradients are averaged as they are, without compression.
        ddp_comm_hook: Accepted.
        ddp_comm_wrapper: Accepted.
        model_averaging_period: Accepted.
        process_group_backend: Accepted: the run chooses it.
        timeout: Accepted.
        start_method: Accepted.
        find_unused_parameters: As torch's; None: step 1 shows.
        static_graph: As torch's.
        gradient_as_bucket_view: As torch's.
        bucket_cap_mb: As torch's.
        broadcast_buffers: As torch's.
        **accepted: Other arguments of torch's ``DistributedDataParallel``.
    """

    def __init__(
        self,
        accelerator: Any = None,
        parallel_devices: Any = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        ddp_comm_state: Any = None,
        ddp_comm_hook: Any = None,
        ddp_comm_wrapper: Any = None,
        model_averaging_period: int | None = None,
        process_group_backend: str | None = None,
        timeout: Any = None,
        start_method: str | None = None,
        *,
        find_unused_parameters: bool | None = None,
        static_graph: bool = False,
        gradient_as_bucket_view: bool = True,
        bucket_cap_mb: float | None = None,
        broadcast_buffers: bool = True,
        **accepted: Any,
    ) -> None:
        super().__init__(
            find_unused_parameters=find_unused_parameters,
            static_graph=static_graph,
            gradient_as_bucket_view=gradient_as_bucket_view,
            bucket_cap_mb=bucket_cap_mb,
            broadcast_buffers=broadcast_buffers,
        )
