"""What a run asks of its strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StrategySettings:
    """What a run asks of its strategy, beside the precision: the Trainer's arguments.

    Args:
        debug: Check that all ranks call the same collective before each of ours.
        sync_batchnorm: Batch norms take their statistics over the samples of all ranks.
        channels_last: Weights of convolutions get this memory format, where they are not sharded.
        skip_nonfinite: Whether an update with gradients that are not finite is to be skipped.
        collective_timeout: Seconds that a collective may take; None is torch's default.
        log_line: Takes a line for the user; the Trainer gives its log's.

    Example:
        >>> trainer.strategy.settings.skip_nonfinite
        True
    """

    debug: bool = False
    sync_batchnorm: bool = False
    channels_last: bool = False
    skip_nonfinite: bool = True
    collective_timeout: float | None = None
    log_line: Callable[[str], None] = print


@dataclass(frozen=True)
class ActivationOptions:
    """What becomes of activations between forward and backward: the arguments of a strategy.

    Args:
        checkpointing: Keep the activations of the model's repeated blocks (or of its ``shard_units()``) no
            longer than their forward, and compute them again in backward; with ``"selective"`` all but the
            results of matrix products and attention.
        offload: Keep the activations of those blocks (True), or of the submodules with these names or
            patterns, in the host's memory until backward.
    """

    checkpointing: bool | str = False
    offload: bool | str | Sequence[str] = False


@dataclass(frozen=True)
class StepPlan:
    """What a step of the run will be, for strategies that want to know beforehand.

    Args:
        samples: Samples in a full step; None where batches decide.
        micro_batch: The most samples one rank takes at once; None likewise.
        micro_batches: Micro-batches of a rank in a full step; None before the data is known.
        clip_norm: The norm gradients are clipped to.
        hooked: Whether hooks see the gradients, and may change them, before they are clipped.

    Example:
        >>> StepPlan(samples=256, micro_batch=32, micro_batches=1).clip_norm is None
        True
    """

    samples: int | None = None
    micro_batch: int | None = None
    micro_batches: int | None = None
    clip_norm: float | None = None
    hooked: bool = False
