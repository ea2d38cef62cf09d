"""Whole matrices for optimizers that need them, out of the flat tensors that ZeRO gives an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from ...errors import PacelineError
from . import zero_state


def provide(engine: Any, optimizer: Optimizer) -> None:
    """Give an optimizer with ``whole_matrices``, or one inside of it, a function that gathers them.

    Args:
        engine: The DeepSpeedEngine, of stage 1, 2 or 3.
        optimizer: The user's.
    """
    nested: list[Any] = [optimizer, getattr(optimizer, "optimizer", None)]
    for one in nested:
        if hasattr(one, "whole_matrices"):
            one.whole_matrices = ZeroMatrices(engine)


def only_optimizer(strategy: str, optimizers: list[Optimizer], config: dict[str, Any]) -> Optimizer:
    """The optimizer that the engine takes.

    Args:
        strategy: Its name, for messages.
        optimizers: Those of the run.
        config: The engine's.

    Raises:
        PacelineError: for several, for one whose state is quantised, and for one that cannot update 16-bit
            parameters in the host's memory.
    """
    if len(optimizers) > 1:
        raise PacelineError(
            f"strategy {strategy!r} takes one optimizer",
            got=f"{len(optimizers)} optimizers",
            fix="strategy='ddp' or 'fsdp' takes several",
        )
    refuse_quantised(strategy, optimizers[0])
    offload = config["zero_optimization"].get("offload_optimizer") or {}
    in_16_bits = config.get("bf16", {}).get("bf16_optimizer_states")
    if in_16_bits and offload.get("device", "none") != "none" and not _is_of_cpu(optimizers[0]):
        raise PacelineError(
            f"strategy {strategy!r} updates offloaded 16-bit parameters with DeepSpeedCPUAdam only",
            got=f"precision='bf16-true', {type(optimizers[0]).__name__}",
            fix="precision='bf16', whose parameters are float32; or no offload; or "
            "DeepSpeedCPUAdam(..., fp32_optimizer_states=False)",
        )
    return optimizers[0]


def _is_of_cpu(optimizer: Any) -> bool:
    """Whether it is DeepSpeed's own for the host, with its state in the parameters' dtype."""
    return type(optimizer).__name__ == "DeepSpeedCPUAdam" and not optimizer.fp32_optimizer_states


def refuse_quantised(name: str, optimizer: Optimizer) -> None:
    """Refuse torchao's optimizers, whose moments are no tensors that can be cut and put together.

    Raises:
        PacelineError: naming what takes them.
    """
    if type(optimizer).__module__.startswith("torchao."):
        raise PacelineError(
            f"strategy {name!r} keeps optimizer state in its own layout, and torchao's is in another",
            got=type(optimizer).__name__,
            fix="strategy='fsdp' or 'ddp' takes it; or LowPrecisionState of paceline.optimizers",
        )


class ZeroMatrices:
    """Applies a function of whole matrices to those that lie in a flat tensor; on all ranks."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    @torch.no_grad()
    def __call__(self, parameter: Tensor, update: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """What the function makes of each matrix, as flat as ``update``.

        Args:
            parameter: A flat master of the engine.
            update: Of the same layout.
            function: Takes a whole matrix and returns one of the same shape and dtype.
        """
        found = torch.zeros_like(update)
        convert = self._partitioned if self._engine.zero_optimization_stage() == 3 else self._fragmented
        for flat, parameters in zero_state.flat_groups(self._engine):
            if flat is parameter:
                for one in parameters:
                    convert(one, update, function, found)
        return found

    def _fragmented(
        self, parameter: Tensor, update: Tensor, function: Callable[[Tensor], Tensor], found: Tensor
    ) -> None:
        """Stages 1 and 2: a rank has any part of a parameter, or none."""
        mapping = getattr(parameter, "_hp_mapping", None)
        whole = torch.zeros(parameter.numel(), dtype=update.dtype, device=parameter.device)
        if mapping is not None:
            flat, own = mapping.hp_fragment_address, mapping.lp_fragment_address
            whole.narrow(0, own.start, own.numel).copy_(update.narrow(0, flat.start, flat.numel))
        dist.all_reduce(whole)  # of parts and zeros: their values, exactly
        result = function(whole.view(parameter.shape)).reshape(-1)
        if mapping is not None:
            found.narrow(0, flat.start, flat.numel).copy_(result.narrow(0, own.start, own.numel))

    def _partitioned(
        self, parameter: Any, update: Tensor, function: Callable[[Tensor], Tensor], found: Tensor
    ) -> None:
        """Stage 3: each rank has as much of a parameter."""
        size = parameter.ds_tensor.numel()
        _, start, _ = self._engine.optimizer.grad_position[parameter.ds_id]
        part = update.narrow(0, start, size)
        whole = zero_state.assembled(parameter, part.to(self._engine.device))
        found.narrow(0, start, size).copy_(zero_state.part_of(parameter, function(whole)))
