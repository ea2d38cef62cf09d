"""What a run asks of its strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StrategySettings:
    """What a run asks of its strategy, beside the precision: the Trainer's arguments, and what a step is.

    Args:
        debug: Check that all ranks call the same collective before each of ours.
        sync_batchnorm: Batch norms take their statistics over the samples of all ranks.
        channels_last: Weights of convolutions get this memory format, where they are not sharded.
        skip_nonfinite: Whether an update with gradients that are not finite is to be skipped.
        collective_timeout: Seconds that a collective may take; None is torch's default.
        log_line: Takes a line for the user; the Trainer gives its log's.
        clip_norm: The norm gradients are clipped to.
        hooks_see_gradients: Whether hooks see the gradients, and may change them, before they are clipped.
        step_samples: Samples in a full step; None where batches decide, and before ``setup``.
        micro_batch_size: The most samples one rank takes at once; None likewise.
        micro_batches: Micro-batches of a rank in a full step; None before ``setup``.

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
    clip_norm: float | None = None
    hooks_see_gradients: bool = False
    step_samples: int | None = None
    micro_batch_size: int | None = None
    micro_batches: int | None = None


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
