"""The first lines of a run: at most seven, always in the same form."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch.optim import Optimizer

from ....common.version import __version__
from ....strategies import Strategy
from ....strategies.launch.job_notes import noted_micro_batch, restarts
from ...data.feed import Feed
from ...runtime.fused import is_fused, unfused_note
from ...runtime.layout_sensitivity import not_as_in_one_batch
from ...utils.paths import shown_path
from ..context import StageContext

_SHOWN = 6
_LENGTHS = ("max_epochs ", "max_steps ")


def first_lines(
    context: StageContext,
    optimizers: Sequence[Optimizer],
    feed: Feed,
    source: Path | None,
    inexact: list[str],
) -> list[str]:
    """Name and folder; where it computes; the global batch; steps; where it resumes; what is not exact."""
    strategy, directory = context.strategy, context.directory
    environment = strategy.environment
    ranks = f"{environment.world_size} device{'s' if environment.world_size > 1 else ''}"
    lines = [
        f"paceline {__version__}: {directory.name}"
        + (f" in {shown_path(directory.path)}" if directory.path else ", nothing is written"),
        f"{ranks} ({environment.device}), strategy {strategy.name}{_split(strategy)}, "
        f"precision {strategy.precision.description}{_arithmetic(environment.device, optimizers)}",
        _global_batch(feed, strategy.collectives.data_world_size),
        _steps(context, feed),
        f"resumes from {shown_path(source)}" if source else "starts fresh",
    ]
    if context.directory.other_settings:
        lines.append(_settings(context.directory.other_settings, optimizers))
    synced = context.settings.sync_batchnorm
    inexact = inexact + not_as_in_one_batch(
        context.module, strategy.collectives.data_world_size, feed.micro_batches, synced
    )
    waits = _unfused(context, optimizers)
    if waits:
        inexact = [*inexact, waits]
    return lines + (["note: " + "; ".join(inexact)] if inexact else [])


def _arithmetic(device: torch.device, optimizers: Sequence[Optimizer]) -> str:
    """What an accelerator's speed and exactness hang on: fused optimizers, float32 products, cuDNN."""
    if device.type == "cpu":
        return ""
    parts = [f"fused {type(o).__name__}" for o in optimizers if is_fused(o)]
    try:
        parts.append(f"float32 products {torch.get_float32_matmul_precision()!r}")
    except RuntimeError:  # set for each kind of product by itself
        parts.append("float32 products as set")
    if torch.backends.cudnn.benchmark:
        parts.append("cuDNN by timing, which is another in each run")
    return "".join(f", {part}" for part in parts)


def _unfused(context: StageContext, optimizers: Sequence[Optimizer]) -> str:
    """What ``fused=True`` would save: only where the check under ``nonfinite="raise"`` is ours."""
    strategy = context.strategy
    ours = not strategy.skips_by_itself and not strategy.precision.scales
    if not ours or context.settings.nonfinite != "raise" or not context.module.automatic_optimization:
        return ""
    return unfused_note(optimizers, strategy.device)


def _split(strategy: Strategy) -> str:
    size = strategy.collectives.tensor_parallel_size
    return f" with each layer split over {size}" if size > 1 else ""


def _global_batch(feed: Feed, world_size: int) -> str:
    micro = feed.micro_batches
    parts = (
        f"{world_size} rank{'s' if world_size > 1 else ''} x {micro} micro-batch{'es' if micro > 1 else ''}"
    )
    if feed.step_size is None:
        return f"global batch = the data's own batch x {parts}"
    size = -(-feed.step_size // (micro * world_size))
    even = size * micro * world_size == feed.step_size
    return f"global batch {feed.step_size} = {'' if even else 'at most '}{size} samples x {parts}"


def _steps(context: StageContext, feed: Feed) -> str:
    limits, settings = context.limits, context.settings
    an_epoch = "unknown" if feed.steps_per_epoch is None else str(feed.steps_per_epoch)
    total = "unknown" if limits.total_steps is None else str(limits.total_steps)
    named = []
    if limits.max_epochs is not None:
        named.append(f"{limits.max_epochs} epoch{'s' if limits.max_epochs > 1 else ''}")
    if limits.max_steps is not None:
        named.append(f"{limits.max_steps} step{'s' if limits.max_steps > 1 else ''}")
    if settings.max_time is not None:
        named.append(f"{settings.max_time}")
    because = "no limit was given: one epoch" if limits.unlimited else "until " + " or ".join(named)
    return f"{an_epoch} steps per epoch, {total} in total ({because})"


def _settings(others: list[str], optimizers: Sequence[Optimizer]) -> str:
    """What a resumed run was built with otherwise than before."""
    more = f"; and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
    text = f"other settings than before: {'; '.join(others[:_SHOWN])}{more}"
    scheduled = any("initial_lr" in group for one in optimizers for group in one.param_groups)
    if scheduled and any(one.startswith(_LENGTHS) for one in others):
        text += " (a schedule over the run's length continues on that of the new length, and can jump)"
    return text


def report_restart(context: StageContext) -> None:
    """Log that this start of the ranks is not the first one, and why."""
    smaller, most = noted_micro_batch(context.fit_number), context.settings.max_restarts
    job = context.strategy.environment.job
    if restarts() and smaller is not None:  # which takes none of max_restarts
        line = f"restart {restarts()}, with micro-batches of at most {smaller} samples"
    elif restarts():
        line = f"restart {restarts()}" + (f" of at most {most} times" if restarts() <= most else "")
    elif job is not None and job.restart:
        line = job.restart
    else:
        return
    context.directory.log_line(line)
