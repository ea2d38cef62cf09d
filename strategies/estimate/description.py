"""What a strategy says of itself beforehand; as it stands here, every rank holds everything."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from ..dtypes.precision import Precision
from .model_bytes import ModelBytes, Moment

Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "to_host", "from_host"]


@dataclass(frozen=True)
class Layout:
    """The ranks that are thought of.

    Args:
        ranks: How many there are in all, one on each device.
        per_node: How many of them a machine has.

    Example:
        >>> Layout(ranks=64, per_node=8).nodes
        8
    """

    ranks: int
    per_node: int = 8

    @property
    def nodes(self) -> int:
        """How many machines."""
        return -(-self.ranks // self.per_node)


@dataclass(frozen=True)
class RankBytes:
    """What a rank holds when it holds most, in bytes on its device.

    Attributes:
        parameters: Bytes of parameters and buffers, as they are kept.
        gradients: Bytes of gradients.
        optimizer: Bytes of the optimizer's state, and of copies of the parameters that it updates.
        activations: Bytes of activations, temporary tensors and the batch.
        gathered: Bytes of parameters that are made whole for their computation, and what they are gathered
            in.
        reducing: Bytes of the buffers in which gradients are reduced.
        idle: Bytes that an accelerator's allocator must reserve beyond that: fragments, and the pools of
            other streams; no part of ``total``.
        host: Bytes in the host's memory, for each rank; no part of ``total``.

    Example:
        >>> RankBytes(parameters=440, gradients=440, optimizer=880).total
        1760
    """

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    gathered: int = 0
    reducing: int = 0
    idle: int = 0
    host: int = 0

    @property
    def total(self) -> int:
        """What is allocated on the device: ``torch.accelerator.max_memory_allocated``."""
        return (
            self.parameters
            + self.gradients
            + self.optimizer
            + self.activations
            + self.gathered
            + self.reducing
        )

    @property
    def reserved(self) -> int:
        """What an accelerator must have: ``torch.accelerator.max_memory_reserved``."""
        return self.total + self.idle


@dataclass(frozen=True)
class Collective:
    """What ranks exchange in a step.

    Args:
        operation: ``"to_host"`` and ``"from_host"`` are copies between a device and its host.
        size: Bytes of the whole tensor, or of all of them together.
        times: In how many operations.
        phase: What runs meanwhile, and may hide it; None: nothing does.
        ranks: How many ranks take part in one; None for all.
        between_nodes: Whether each of these ranks is on another machine.

    Example:
        >>> Collective("all_reduce", size=100_000_000, times=4, phase="backward").operation
        'all_reduce'
    """

    operation: Operation
    size: float
    times: int = 1
    phase: Literal["forward", "backward"] | None = None
    ranks: int | None = None
    between_nodes: bool = False


class Description:
    """What a strategy says of itself to an estimate; nothing of it needs a device or other ranks.

    A strategy that spreads what a rank holds has a subclass with ``bytes_at``, one that communicates
    otherwise one with ``collectives_of_step``.

    Args:
        many_ranks: Whether it computes on several ranks.
        smaller: The argument for a strategy that needs less memory on each device, if any.

    Example:
        >>> DDP().description.smaller
        'strategy="fsdp"'
    """

    def __init__(self, many_ranks: bool = False, smaller: str | None = None) -> None:
        self.many_ranks, self.smaller = many_ranks, smaller

    def computes_in(self, precision: Precision) -> torch.dtype:
        """The dtype in which the module finds its parameters; they may be kept in another one."""
        return precision.param_dtype

    def states(self, model: ModelBytes, layout: Layout) -> RankBytes:
        """What a rank holds of parameters, all gradients and optimizer state, without anything else.

        Args:
            model: The model on one device.
            layout: The ranks.
        """
        return RankBytes(
            parameters=model.parameters + model.buffers, gradients=model.trained, optimizer=model.optimizer
        )

    def rank_bytes(self, model: ModelBytes, layout: Layout) -> RankBytes:
        """What a rank holds when it holds most.

        Args:
            model: The model and its step on one device.
            layout: The ranks.
        """
        found = [self.bytes_at(moment, model, layout) for moment in model.moments]
        most = max(found, key=lambda one: one.total)
        return replace(most, idle=most.idle + model.fragments)

    def bytes_at(self, moment: Moment, model: ModelBytes, layout: Layout) -> RankBytes:
        """What a rank holds at an instant of the step.

        Args:
            moment: The instant, on one device.
            model: The model and its step on one device.
            layout: The ranks.
        """
        return replace(
            self.states(model, layout),
            gradients=moment.gradients,
            activations=moment.activations + moment.temporaries,
        )

    def update_share(self, layout: Layout) -> float:
        """The part of all parameters that a rank's optimizer updates, from 0 to 1."""
        return 1.0

    @property
    def updates_on_host(self) -> bool:
        """Whether the host's processors update the parameters."""
        return False

    def collectives_of_step(self, model: ModelBytes, layout: Layout) -> list[Collective]:
        """What the ranks exchange in a step.

        Args:
            model: The model and its step on one device.
            layout: The ranks.
        """
        if not self.many_ranks or layout.ranks == 1:
            return []
        return [Collective("all_reduce", model.trained)]  # as ``average_gradients``, after backward


def divided(size: float, ranks: int) -> int:
    """A rank's part, rounded up."""
    return int(-(-size // ranks))
