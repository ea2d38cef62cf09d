"""What a model needs on one device, as strategies divide it: states, units, and the instants of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from ..blocks.repeated_blocks import find_units, untied

Phase = Literal["forward", "backward", "reduce", "update"]


@dataclass(frozen=True)
class Moment:
    """An instant of a step on one device; parameters and optimizer state come on top.

    Args:
        phase: What is computed; ``"reduce"`` is the end of the last backward, when all gradients are there.
        activations: Bytes of activations, temporary tensors and the batch; in ``"update"`` without those
            of the optimizer.
        gradients: Bytes of all gradients there are, in the dtype that backward leaves.
        finished: The part of them in units whose last backward of the step is complete.
        unit: The unit that is computed, or the last one that was; -1 before the first.
        inside: Whether it is within that unit.
        temporaries: Bytes that the optimizer needs during its step.

    Example:
        >>> Moment("backward", activations=1000, gradients=400, finished=300, unit=2).gradients
        400
    """

    phase: Phase
    activations: int = 0
    gradients: int = 0
    finished: int = 0
    unit: int = -1
    inside: bool = False
    temporaries: int = 0


@dataclass(frozen=True)
class ModelBytes:
    """A model and its step on one device, in bytes.

    Args:
        parameters: Of all parameters, in the dtype that they are kept and updated in.
        trained: Of the trained ones.
        numbers: How many trained parameters there are.
        optimizer: The optimizer's state, as on one device.
        buffers: Of buffers.
        all_numbers: How many parameters there are, trained or not.
        units: Of the parameters that are gathered together, one after another in the order of the forward.
        largest: Of the largest trained parameter.
        largest_group: Of the largest parameter group's trained parameters.
        sizes: Of each parameter.
        at_once: Whether the optimizer updates all parameters in one pass (foreach, fused).
        compute_ratio: The bytes of a parameter as the model computes with it, relative to as it is kept.
        micro_batches: Those of a step, 2 for more.
        fragments: What an accelerator's allocator reserves beyond the most that is live on one device.
        moments: The instants of a step, those at which any strategy may need most.

    Example:
        >>> ModelBytes.of(torch.nn.Linear(10, 10)).optimizer
        880
    """

    parameters: int
    trained: int
    numbers: int
    optimizer: int
    buffers: int = 0
    all_numbers: int = 0
    units: tuple[int, ...] = ()
    largest: int = 0
    largest_group: int = 0
    sizes: tuple[int, ...] = ()
    at_once: bool = False
    compute_ratio: float = 1.0
    micro_batches: int = 1
    fragments: int = 0
    moments: tuple[Moment, ...] = ()

    @property
    def outer(self) -> int:
        """Bytes of the parameters that are in no unit."""
        return self.parameters - sum(self.units)

    @property
    def sums_wide(self) -> bool:
        """Whether gradients of micro-batches are summed in a wider dtype than that of the parameters."""
        return max((moment.gradients for moment in self.moments), default=0) > self.trained

    @classmethod
    def of(cls, module: nn.Module) -> ModelBytes:
        """Its states alone, with the two moments of an Adam optimizer; activations are not known.

        With P trained parameters of 4 bytes these are 16 P (Rajbhandari et al., "ZeRO", 2020, section 3,
        for one precision throughout).

        Args:
            module: Its parameters are counted, tied ones once; they may be on the meta device.
        """
        sizes = {p: p.numel() * p.element_size() for p in module.parameters()}
        trained = {p: size for p, size in sizes.items() if p.requires_grad}
        all_gradients = sum(trained.values())
        return cls(
            parameters=sum(sizes.values()),
            trained=all_gradients,
            numbers=sum(p.numel() for p in trained),
            all_numbers=sum(p.numel() for p in sizes),
            optimizer=2 * all_gradients,
            buffers=sum(b.numel() * b.element_size() for b in module.buffers()),
            units=unit_sizes(module),
            largest=max(trained.values(), default=0),
            largest_group=all_gradients,
            sizes=tuple(sizes.values()),
            moments=(Moment("update", gradients=all_gradients, finished=all_gradients),),
        )


def unit_sizes(module: nn.Module) -> tuple[int, ...]:
    """The bytes of each unit's parameters, without those of units that share some with others."""
    units = untied(module, find_units(module))
    return tuple(sum(p.numel() * p.element_size() for p in unit.parameters()) for unit in units)


def bytes_of(dtype: torch.dtype) -> int:
    """The size of one number."""
    return torch.empty((), dtype=dtype).element_size()
