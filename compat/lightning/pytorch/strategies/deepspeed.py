"""``DeepSpeedStrategy`` with Lightning's arguments."""

from __future__ import annotations

from typing import Any

from .....strategies import DeepSpeed
from .....strategies.deepspeed.config import read_config
from .named import LightningStrategy

_OF_ZERO = (
    "allgather_bucket_size",
    "reduce_bucket_size",
    "allgather_partitions",
    "reduce_scatter",
    "overlap_comm",
    "contiguous_gradients",
    "sub_group_size",
)
"""Arguments of the same name in the section ``zero_optimization`` of a configuration."""


class DeepSpeedStrategy(DeepSpeed, metaclass=LightningStrategy):
    """DeepSpeed's ZeRO.

    Args:
        accelerator: Accepted: the Trainer's counts.
        zero_optimization: False is stage 0.
        stage: 0 to 3; 2 where neither it nor ``config`` says so.
        remote_device: Accepted.
        offload_optimizer: Update in the host's memory.
        offload_parameters: The same, and keep parameters there.
        offload_params_device: ``"cpu"``.
        offload_optimizer_device: ``"cpu"``.
        config: DeepSpeed's configuration, a dictionary or the path of a JSON file.
        **more: ``allgather_bucket_size``, ``reduce_bucket_size``, ``overlap_comm``,
            ``contiguous_gradients``, ``reduce_scatter``, ``allgather_partitions`` and ``sub_group_size`` go
            into the configuration. Others of Lightning's are accepted: what they set is for ``config``.

    Raises:
        PacelineError: for a stage that is none, and a configuration that cannot be read.
    """

    def __init__(
        self,
        accelerator: Any = None,
        zero_optimization: bool = True,
        stage: int | None = None,
        remote_device: str | None = None,
        offload_optimizer: bool = False,
        offload_parameters: bool = False,
        offload_params_device: str = "cpu",
        offload_optimizer_device: str = "cpu",
        config: Any = None,
        **more: Any,
    ) -> None:
        given = {name: more[name] for name in _OF_ZERO if name in more}
        if given:
            config = read_config(config)
            config = config | {"zero_optimization": given | config.get("zero_optimization", {})}
        super().__init__(
            stage if zero_optimization else 0, config, offload=offload_optimizer or offload_parameters
        )
