"""The training data once more, without updates: what batch norms count, for averaged weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch

from ...errors import PacelineError
from ..metrics.store import MetricStore
from ..rng import untouched
from ..runtime.discard_effects import nothing_kept
from ..utils.functions import positional_arguments
from .fit_context import FitContext


@torch.no_grad()
def forward_training_data(context: FitContext) -> None:
    """Run ``training_step`` on each batch of an epoch; nothing is logged, and nobody's position moves.

    To be called on all ranks, between two epochs or after the last one.

    Raises:
        PacelineError: for data that keeps its own position, which a second pass would move.
    """
    module, strategy, feed = context.module, context.strategy, context.feed
    if not module.automatic_optimization:
        raise PacelineError(
            "training_step updates by itself under manual optimization, and cannot be run without",
            code="manual-optimization",
            fix="run the model on the data in on_fit_end of the module",
        )
    position = feed.state_dict()
    if _is_of_source(position):
        raise PacelineError(
            "the training data keeps its own position, and cannot be read once more during a run",
            code="data-read-once",
            got=type(feed.data).__name__,
            fix="data without state_dict(), such as a DataLoader over a dataset",
        )
    step = strategy.step_function(module, "training_step")
    takes_index = positional_arguments(module.training_step) > 1
    scratch = MetricStore("train", context.directory.log_line)
    epoch = max(context.state.epoch - (context.state.position == 0), 0)
    feed.prepare(epoch)
    with (
        context.watchdog.during("validation"),
        strategy.evaluation(module),
        untouched(strategy.device),
        context.logger.logging_to(scratch),
    ):
        for batch_idx, (batch, size) in enumerate(_micro_batches(context, epoch)):
            # A rank without a sample runs for the others, which may need this one to compute.
            kept = nullcontext() if size else nothing_kept(module, context.logger, scratch)
            with kept:
                step(*(batch, batch_idx)[: 2 if takes_index else 1])
            context.watchdog.beat()
    if position:
        feed.load_state_dict(position)
    for metric in scratch.objects.values():
        metric.reset()


def _is_of_source(position: dict[str, Any]) -> bool:
    """Whether a feed's state has the position of a source that keeps it itself."""
    loaders = position.get("loaders")  # several have their counts
    return bool(position) if loaders is None else any(one["source"] for one in loaders.values())


def _micro_batches(context: FitContext, epoch: int) -> Iterator[tuple[Any, int]]:
    for batches, sizes, *_ in context.signals.interruptible(context.feed.steps(epoch)):
        yield from zip(batches, sizes, strict=True)
