"""Whole matrices for optimizers that need them, out of the flat tensors that ZeRO gives an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from ...common.chunks import in_chunks
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
            code="optimizer-not-supported",
            got=f"{len(optimizers)} optimizers",
            fix="strategy='ddp' or 'fsdp' takes several",
        )
    refuse_quantised(strategy, optimizers[0])
    offload = config["zero_optimization"].get("offload_optimizer") or {}
    in_16_bits = config.get("bf16", {}).get("bf16_optimizer_states")
    if in_16_bits and offload.get("device", "none") != "none" and not _is_of_cpu(optimizers[0]):
        raise PacelineError(
            f"strategy {strategy!r} updates offloaded 16-bit parameters with DeepSpeedCPUAdam only",
            code="optimizer-not-supported",
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
            code="optimizer-not-supported",
            got=type(optimizer).__name__,
            fix="strategy='fsdp' or 'ddp' takes it; or LowPrecisionState of paceline.optimizers",
        )


class ZeroMatrices:
    """Applies a function of whole matrices to those that lie in a flat tensor; on all ranks."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    @torch.no_grad()
    def __call__(
        self,
        parameters: Sequence[Tensor],
        updates: Sequence[Tensor],
        function: Callable[[list[Tensor]], list[Tensor]],
        at_once: int,
    ) -> list[Tensor]:
        """What the function makes of all matrices, as flat as ``updates``.

        Args:
            parameters: Flat masters of the engine.
            updates: As many, of the same layouts.
            function: Takes whole matrices and returns as many of the same shapes and dtypes.
            at_once: How many numbers there may be in the matrices of one call of it.
        """
        layout = _Partitioned if self._engine.zero_optimization_stage() == 3 else _Fragmented
        return [
            self._converted(layout(self._engine, update), parameter, function, at_once)
            for parameter, update in zip(parameters, updates, strict=True)
        ]

    def _converted(
        self,
        flat: _Partitioned | _Fragmented,
        parameter: Tensor,
        function: Callable[[list[Tensor]], list[Tensor]],
        at_once: int,
    ) -> Tensor:
        found = torch.zeros_like(flat.update)
        for master, matrices in zero_state.flat_groups(self._engine):
            if master is not parameter:
                continue
            for chunk in in_chunks(matrices, flat.numbers, at_once):
                results = function([flat.whole(matrix) for matrix in chunk])
                for matrix, result in zip(chunk, results, strict=True):
                    flat.put(matrix, result, found)
        return found


class _Fragmented:
    """Stages 1 and 2: a rank has any part of a parameter, or none."""

    def __init__(self, engine: Any, update: Tensor) -> None:
        self.update = update

    def numbers(self, parameter: Tensor) -> int:
        """How many its whole matrix has."""
        return parameter.numel()

    def whole(self, parameter: Tensor) -> Tensor:
        """The whole matrix of a parameter's update, gathered. On all ranks."""
        mapping = getattr(parameter, "_hp_mapping", None)
        whole = torch.zeros(parameter.numel(), dtype=self.update.dtype, device=parameter.device)
        if mapping is not None:
            flat, own = mapping.hp_fragment_address, mapping.lp_fragment_address
            whole.narrow(0, own.start, own.numel).copy_(self.update.narrow(0, flat.start, flat.numel))
        dist.all_reduce(whole)  # of parts and zeros: their values, exactly
        return whole.view(parameter.shape)

    def put(self, parameter: Tensor, whole: Tensor, found: Tensor) -> None:
        """Write this rank's part of a whole matrix to where it lies in ``found``."""
        mapping = getattr(parameter, "_hp_mapping", None)
        if mapping is not None:
            flat, own = mapping.hp_fragment_address, mapping.lp_fragment_address
            part = whole.reshape(-1).narrow(0, own.start, own.numel)
            found.narrow(0, flat.start, flat.numel).copy_(part)


class _Partitioned:
    """Stage 3: each rank has as much of a parameter."""

    def __init__(self, engine: Any, update: Tensor) -> None:
        self._engine = engine
        self.update = update

    def numbers(self, parameter: Any) -> int:
        """How many its whole matrix has."""
        return int(parameter.ds_numel)

    def _part(self, flat: Tensor, parameter: Any) -> Tensor:
        _, start, _ = self._engine.optimizer.grad_position[parameter.ds_id]
        return flat.narrow(0, start, parameter.ds_tensor.numel())

    def whole(self, parameter: Any) -> Tensor:
        """The whole matrix of a parameter's update, gathered. On all ranks."""
        part = self._part(self.update, parameter).to(self._engine.device)
        return zero_state.assembled(parameter, part)

    def put(self, parameter: Any, whole: Tensor, found: Tensor) -> None:
        """Write this rank's part of a whole matrix to where it lies in ``found``."""
        self._part(found, parameter).copy_(zero_state.part_of(parameter, whole))
