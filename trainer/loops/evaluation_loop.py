"""Validation, test and prediction: one pass over the data, in eval mode, that leaves no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from typing import Any

import torch

from ...common.faultpoints import faultpoint
from ...errors import PacelineError
from ..data.feed import Feed
from ..metrics.metric_objects import metric_parts, reset_meanwhile, update_count
from ..metrics.store import MetricStore
from ..phases import PHASES, STEPS
from ..rng import untouched
from ..runtime.discard_effects import nothing_kept
from ..runtime.train_mode import evaluating
from ..utils.functions import positional_arguments
from .context import StageContext
from .predictions import PredictionSink
from .step_output import log_evaluation_output

_HOOKS = {"validate": "validation", "test": "test", "predict": "predict"}


class EvaluationLoop:
    """Runs one of ``validate``, ``test`` and ``predict`` over one or several dataloaders.

    Args:
        feeds: By name; one unnamed feed has the name "".
    """

    def __init__(self, context: StageContext, stage: str, feeds: dict[str, Feed]) -> None:
        self.context, self.stage, self.feeds = context, stage, feeds
        self.store = MetricStore(PHASES[stage], context.directory.log_line, context.ranks)
        step = getattr(context.module, STEPS[stage])
        self.step = context.strategy.step_function(context.module, STEPS[stage])
        self.takes = min(positional_arguments(step), 3)
        self.hook = f"on_{_HOOKS[stage]}"

    def run(self, publish: Callable[[dict[str, float]], None], limit: int | None = None) -> bool:
        """One pass. The end hooks see the reduced values; what they log is published after them.

        Returns:
            False where a signal cut it short: nothing of it is kept.

        Args:
            publish: Takes reduced values by full name.
            limit: Read at most so many batches of each dataloader (the sanity pass).
        """
        self.context.step.next_event = 0.0  # its batches bring the next agreement of the ranks nearer
        with self._trace_free():
            objects = metric_parts(self.context.module).values()
            counts = [(part, update_count(part)) for part in objects]
            try:
                self._read_all(self._log, limit)
            except Exception:
                self.store.discard(part for part, n in counts if update_count(part) != n)
                raise
            faultpoint(f"{self.stage}.end")
            if self.context.stop.interrupted:
                self.store.discard(part for part, n in counts if update_count(part) != n)
                return False
            self._end(publish)
        return True

    def _end(self, publish: Callable[[dict[str, float]], None]) -> None:
        """The end hooks, which see the reduced values and torchmetrics objects that are whole."""
        try:
            publish(self.store.close_epoch())
            for hook in self.context.hooks[f"{self.hook}_end"]:
                hook(self.context.trainer)
                publish(self.store.close_epoch())
        finally:
            self.store.reset_objects()

    def _log(self, output: Any, size: int) -> None:
        log_evaluation_output(output, self.store)  # None for a batch that only keeps the ranks in step

    def predict(self, sink: PredictionSink, publish: Callable[[dict[str, float]], None]) -> Any:
        """One pass; what ``sink`` makes of the outputs.

        Args:
            sink: Takes the outputs.
            publish: Takes the reduced values that were logged, by full name.
        """
        with self._trace_free():
            self._read_all(sink.take, None)
            self._end(publish)
        return sink.close()

    @contextmanager
    def _trace_free(self) -> Iterator[None]:
        context = self.context
        with (
            context.watchdog.during("validation"),
            context.strategy.evaluation(context.module),
            evaluating(context.module),
            torch.no_grad(),
            untouched(context.strategy.device),
            reset_meanwhile(context.logger.held_objects()),  # it may be called by a hook that sees them
            context.logger.logging_to(self.store),
            ExitStack() as callbacks,
        ):
            for callback in context.callbacks:
                callbacks.enter_context(callback.evaluation(context.trainer))
            yield

    def _read_all(self, keep: Callable[[Any, int], None], limit: int | None) -> None:
        faultpoint(f"{self.stage}.start")
        self.context.hooks.call(f"{self.hook}_start", self.context.trainer)
        for number, (name, feed) in enumerate(self.feeds.items()):
            self.store.set_loader(name)
            self._read(feed, number, keep, limit)
            if self.context.stop.interrupted:
                break
        self.store.set_loader("")
        self.store.weight = 1

    def _read(self, feed: Feed, number: int, keep: Callable[[Any, int], None], limit: int | None) -> None:
        context, step_end = self.context, self.context.hooks[f"{self.hook}_step_end"]
        trainer, stop = context.trainer, context.stop
        batch_idx = -1
        context.step.indices = partial(feed.samples_of, 0)
        steps = islice(feed.steps(0), limit)
        for batch_idx, step in enumerate(context.signals.interruptible(steps)):
            faultpoint(f"{self.stage}.batch")
            context.watchdog.beat()
            stop.at_boundary(batches=1)
            if stop.interrupted:
                break
            batch, size = step[0][0], step[1][0]
            self.store.weight = size
            if not size:  # the other ranks have samples left, and may need this one to compute
                with nothing_kept(context.module, context.logger, self.store):
                    self.step(*(batch, batch_idx, number)[: self.takes])
                keep(None, 0)
                continue
            output = self.step(*(batch, batch_idx, number)[: self.takes])
            keep(output, size)
            for hook in step_end:
                hook(trainer, output, batch, batch_idx)
        context.step.indices = list
        if batch_idx < 0 and not stop.interrupted:
            raise PacelineError(
                f"the data to {self.stage} with has no batch",
                code="no-data",
                got=str(feed.fingerprint()),
                fix="see that it is not empty; a generator is exhausted after one pass: give a list or a "
                "DataLoader",
            )
