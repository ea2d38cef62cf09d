"""Which rank holds the others up, by the time each spends on its own work."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...common.argument_checks import STEPS, check_arguments
from ...durations import Duration
from ..base import Callback

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from ..trainer_view import TrainerView

_MEASURED = 5  # steps before each report
_SLOWER, _AT_LEAST = 1.5, 1e-3
_AGAIN = 10


class Stragglers(Callback):
    """Names the rank that is slow, though waiting for it makes the steps of all ranks equally long.

    Measured is what a rank does by itself: waiting for data, from a step boundary to the start of the next
    step, and computing, from there to its last gradient. At the end of each window of ``every`` steps the
    ranks share their medians over its last 5 (without an epoch's first step). Published are
    ``perf/step_seconds_max`` and ``_median`` over the ranks (data and computing), ``perf/data_seconds_max``
    and ``_median``, and ``perf/slowest_rank``. Where that rank takes more than 1.5 times the median of the
    others and 1 ms more, a line names it; the same rank again after 10 reports at the earliest. On one
    device it does nothing.

    These are the host's times. On an accelerator, which is waited for before each measured step, the part
    of backward still running there is missing. Where ranks wait for each other before their last gradient
    (parameters in shards, buffers that are broadcast, synced batch norms, several optimizers), that counts
    as computing: then only the data's seconds tell.

    Args:
        every: Steps in a window: 50 or ``"50st"``.

    Raises:
        PacelineError: for anything but a number of steps.

    Example:
        >>> trainer = Trainer(callbacks=Stragglers(every=200))
    """

    def __init__(self, every: Any = 50) -> None:
        check_arguments("Stragglers", every=(every, STEPS))
        self.every = int(Duration.parse(every).amount)
        self._hooks: list[RemovableHandle] = []
        self._forget()

    def _forget(self) -> None:
        self._measured: list[tuple[float, float]] = []
        self._boundary: float | None = None
        self._started = self._last_gradient = 0.0
        self._reports, self._reported, self._reported_at = 0, -1, 0

    def on_fit_start(self, trainer: TrainerView) -> None:
        self._forget()

    def on_step_boundary(self, trainer: TrainerView) -> None:
        if trainer.world_size == 1 or trainer.global_step % self.every < self.every - _MEASURED:
            return
        if not self._hooks:
            trained = [p for p in trainer.module.parameters() if p.requires_grad]
            self._hooks = [p.register_post_accumulate_grad_hook(self._note) for p in trained]
        if trainer.counters.samples_in_epoch == 0:
            return  # no usual step: workers start, ranks compare their order
        if trainer.strategy.device.type != "cpu":
            torch.accelerator.synchronize(trainer.strategy.device)
        self._boundary = time.perf_counter()

    def _note(self, parameter: Tensor) -> None:
        self._last_gradient = time.perf_counter()

    def on_step_start(self, trainer: TrainerView, batches: list[Any]) -> None:
        self._started = time.perf_counter()

    def on_step_end(self, trainer: TrainerView, outputs: list[Any]) -> None:
        begun, self._boundary = self._boundary, None
        if begun is not None:
            # Without a hook that was called, the step's end serves.
            end = self._last_gradient if self._last_gradient > self._started else time.perf_counter()
            self._measured.append((self._started - begun, end - begun))
        if trainer.global_step % self.every == 0:
            self._remove_hooks()
            if self._measured:
                self._report(trainer)

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        self._remove_hooks()

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _report(self, trainer: TrainerView) -> None:
        mine = [median(seconds) for seconds in zip(*self._measured, strict=True)]
        self._measured, self._reports = [], self._reports + 1
        data, step = zip(*trainer.ranks.all_gather(mine), strict=True)
        slowest = step.index(max(step))
        values = {"step_seconds_max": max(step), "step_seconds_median": median(step)}
        values |= {"data_seconds_max": max(data), "data_seconds_median": median(data)}
        values["slowest_rank"] = float(slowest)
        trainer.publish({f"perf/{name}": value for name, value in values.items()})
        others, others_data = (median(s[:slowest] + s[slowest + 1 :]) for s in (step, data))
        slow = step[slowest] > _SLOWER * others and step[slowest] - others >= _AT_LEAST
        if slow and (self._reported != slowest or self._reports - self._reported_at >= _AGAIN):
            self._reported, self._reported_at = slowest, self._reports
            trainer.log_line(
                f"rank {slowest} is a straggler: its own work takes {_shown(step[slowest])} per step, "
                f"{_shown(data[slowest])} of that waiting for data; the median of the others is "
                f"{_shown(others)}, {_shown(others_data)} of that waiting for data"
            )


def _shown(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
