"""``batch_size="auto"``: a step that runs out of memory is repeated in micro-batches of half the size."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch

from ...strategies.launch.job_notes import note_micro_batch
from ..data.feed import MicroBatches
from ..faults.out_of_memory import is_out_of_memory
from ..utils.nested import listed
from .fit_context import FitContext
from .optimizer_step import OptimizerStep
from .step_undo import StepUndo


class MemoryRetry:
    """The steps of an epoch, and what runs one: the same step again where memory ran out in it.

    The samples are read again, which gives them as before. On several ranks the others wait within the
    step: there all ranks are started again by their launcher, and resume with smaller micro-batches.
    """

    def __init__(self, context: FitContext, step: OptimizerStep) -> None:
        self._context, self._step = context, step
        self._undo = StepUndo(context) if context.strategy.repeats_steps else None
        self._steps: Iterator[MicroBatches] = iter(())
        self._size = context.state.micro_batch
        self._feed_before: dict[str, Any] = {}

    def steps(self, epoch: int, position: int = 0) -> Iterator[MicroBatches]:
        """The steps of an epoch from ``position`` on, as ``Feed.steps`` gives them.

        In micro-batches of ``TrainState.micro_batch``, which may change between two steps.
        """
        feed, state = self._context.feed, self._context.state
        self._steps = feed.steps(epoch, position)
        try:
            while True:
                if state.micro_batch != self._size:
                    self._cut()
                self._feed_before = feed.state_dict()
                step = next(self._steps, None)
                if step is None:
                    return
                yield step
        finally:
            self._steps = iter(())  # ends the pass, and its workers

    def run(self, batches: list[Any], sizes: list[int], total: int | None) -> list[Any]:
        """One optimizer step, as ``OptimizerStep.automatic`` has it."""
        reason = ""
        while True:
            put_back = self._undo.keep() if self._undo is not None else None
            try:
                return self._step.automatic(batches, sizes, total)
            except Exception as error:
                if reason:
                    error.add_note(f"the step had run out of memory before: {reason}")
                if not self._would_help(error) or put_back is None or not self._can_undo(error):
                    raise
                reason = str(error).partition("\n")[0]
            # Not in the handler: the error's frames hold the tensors of the step.
            self._context.strategy.discard_gradients(self._step.optimizer)
            put_back()
            batches.clear()
            self._context.step.begin([], [], None)  # its outputs hold graphs
            self._free_memory()
            batches, sizes, total = self._read_again(reason)

    def _would_help(self, error: Exception) -> bool:
        """Whether smaller micro-batches are worth a try; where not this process takes them, who does."""
        if not is_out_of_memory(error) or not self._step.computes_gradients:
            return False
        if self._context.state.micro_batch == 1:
            return False
        if self._undo is None and note_micro_batch(self._context.fit_number, self._smaller):
            how = f"with micro-batches of at most {self._smaller} samples"
            error.add_note(f"the ranks are started again, {how}")
        elif self._undo is None:
            error.add_note(
                'nothing repeats this step in smaller micro-batches: that takes strategy="single", or '
                "ranks that a launcher of paceline has started"
            )
        return True

    def _can_undo(self, error: Exception) -> bool:
        assert self._undo is not None
        written = self._undo.written_parameters()
        if written:
            error.add_note(
                "the step is not repeated in smaller micro-batches: before its update it wrote to the "
                f"parameters {listed(written)}; on_step_end is the place for that"
            )
        return not written

    @property
    def _smaller(self) -> int:
        return -(-self._context.state.micro_batch // 2)

    def _free_memory(self) -> None:
        if self._context.guard is not None:
            self._context.guard.forget()
        self._step.without_loss.here = False
        gc.collect()
        if self._context.strategy.device.type != "cpu":
            torch.accelerator.empty_cache()

    def _read_again(self, reason: str) -> tuple[list[Any], list[int], int | None]:
        """The step's samples, in smaller micro-batches; so are those of all steps after it."""
        context, state, size = self._context, self._context.state, self._smaller
        context.directory.log_line(
            f"{state.step_label}: out of memory ({reason}); the step is repeated with micro-batches of at "
            f"most {size} samples, {state.micro_batch} before"
        )
        state.micro_batch = size
        context.directory.note_micro_batch(state.global_step + 1, size)
        context.feed.load_state_dict(self._feed_before)
        self._cut()
        step = next(self._steps)
        return step.batches, step.sizes, step.total

    def _cut(self) -> None:
        """Give the rest of the epoch in micro-batches of the size that is wanted now."""
        feed, state = self._context.feed, self._context.state
        self._size = state.micro_batch
        feed.use_micro_batches(self._size)
        self._steps = feed.steps(state.epoch, state.position)
