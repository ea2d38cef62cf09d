"""The first lines of a run: at most six, always in the same form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..runtime.fused import is_fused, unfused_note
from .layout_sensitivity import not_as_in_one_batch
from .train_mode import trainable_in_eval_mode

if TYPE_CHECKING:
    from ..data.feed import Feed
    from ..trainer import Trainer


def first_lines(trainer: Trainer, feed: Feed, source: Path | None, inexact: list[str]) -> list[str]:
    """Name and folder; where it computes; the global batch; steps; where it resumes; what is not exact."""
    from ... import __version__

    environment = trainer.strategy.environment
    ranks = f"{environment.world} device{'s' if environment.world > 1 else ''}"
    lines = [
        f"paceline {__version__}: {trainer.name}"
        + (f" in {trainer.folder}" if trainer.folder else ", nothing is written"),
        f"{ranks} ({environment.device}), strategy {trainer.strategy.name}, "
        f"precision {trainer.strategy.precision.name}{_arithmetic(trainer)}",
        _global_batch(feed, environment.world),
        _steps(trainer, feed),
        f"resumes from {source}" if source else "starts fresh",
    ]
    synced = trainer.settings.sync_batchnorm
    inexact = inexact + not_as_in_one_batch(trainer.module, environment.world, feed.micro_batches, synced)
    waits = _unfused(trainer)
    if waits:
        inexact = [*inexact, waits]
    asleep = trainable_in_eval_mode(trainer.module)
    if asleep:
        inexact = [
            *inexact,
            f"trainable but in eval mode: {', '.join(asleep[:4])}"
            + (f" and {len(asleep) - 4} more" if len(asleep) > 4 else "")
            + "; call module.train() before fit unless that is meant",
        ]
    return lines + (["note: " + "; ".join(inexact)] if inexact else [])


def _arithmetic(trainer: Trainer) -> str:
    """What an accelerator's speed and exactness hang on: fused optimizers, float32 products, cuDNN."""
    if trainer.strategy.device.type == "cpu":
        return ""
    parts = [f"fused {type(o).__name__}" for o in trainer.optimization.optimizers if is_fused(o)]
    try:
        parts.append(f"float32 products {torch.get_float32_matmul_precision()!r}")
    except RuntimeError:  # set for each kind of product by itself
        parts.append("float32 products as set")
    if torch.backends.cudnn.benchmark:
        parts.append("cuDNN by timing, which is another in each run")
    return "".join(f", {part}" for part in parts)


def _unfused(trainer: Trainer) -> str:
    """What ``fused=True`` would save: only where the check under ``nonfinite="raise"`` is ours."""
    strategy = trainer.strategy
    ours = not strategy.skips_by_itself and not strategy.precision.scales
    if not ours or trainer.settings.nonfinite != "raise" or not trainer.module.automatic_optimization:
        return ""
    return unfused_note(trainer.optimization.optimizers, strategy.device)


def _global_batch(feed: Feed, world: int) -> str:
    micro = feed.micro_batches
    parts = f"{world} rank{'s' if world > 1 else ''} x {micro} micro-batch{'es' if micro > 1 else ''}"
    if feed.step_size is None:
        return f"global batch = the data's own batch x {parts}"
    size = -(-feed.step_size // (micro * world))
    even = size * micro * world == feed.step_size
    return f"global batch {feed.step_size} = {'' if even else 'at most '}{size} samples x {parts}"


def _steps(trainer: Trainer, feed: Feed) -> str:
    an_epoch = "unknown" if feed.steps_per_epoch is None else str(feed.steps_per_epoch)
    total = "unknown" if trainer.total_steps is None else str(trainer.total_steps)
    settings = trainer.settings
    limits = []
    if trainer.max_epochs is not None:
        limits.append(f"{trainer.max_epochs} epoch{'s' if trainer.max_epochs > 1 else ''}")
    if trainer.max_steps is not None:
        limits.append(f"{trainer.max_steps} steps")
    if settings.max_time is not None:
        limits.append(f"{settings.max_time}")
    unasked = settings.max_epochs is settings.max_steps is settings.max_time is None
    because = "no limit was given: one epoch" if unasked else "until " + " or ".join(limits)
    return f"{an_epoch} steps an epoch, {total} in all ({because})"
