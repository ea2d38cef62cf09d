"""How fast a run is: steps and tokens per second, waiting for data, and the share of the device's peak."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...common.argument_checks import ABOVE_ZERO_OR_NONE, COUNT_OR_NONE, STEPS, SWITCH, check_arguments
from ...durations import Duration
from ..batches.batch_part import PART_OF_BATCH_OR_NONE, part_of
from .peak_flops import peak_flops as find_peak
from .phase_clock import PhaseCallback, PhaseClock

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode

    from ..trainer_view import TrainerView


_MOST_MARKS = 10_000


class _Mark(NamedTuple):
    """The sums so far, at the end of a step."""

    step: int
    seconds: float
    waiting: float
    samples: int
    tokens: Any


class Throughput(PhaseCallback):
    """Publishes steps, tokens and FLOPs per second every so many steps, without validations and saves.

    ``perf/steps_per_second``; ``perf/tokens_per_second`` over all ranks; ``perf/data_wait_share``: of the
    time between two step boundaries, the part before the next step starts, from 0 to 1, on the rank that
    waits longest; ``perf/tflops_per_device``, and ``perf/mfu``, its share of the device's peak (model FLOPs
    utilization). ``perf/samples_per_second`` is the Trainer's own. Times are the host's. The first step,
    and the one whose FLOPs are counted, are in none of them.

    FLOPs are those of matrix products, convolutions and attention that torch's ``FlopCounterMode`` knows
    (no custom kernels), counted once, in step 2 of the run, and taken to be the same for each sample from
    then on; a checkpoint keeps them. That step runs uncompiled. What activation checkpointing computes
    again is counted again, and so are products of the optimizer.

    Args:
        every: Steps between two publications: 50 or ``"50st"``.
        window: Rates are means over the last so many steps, 10,000 at most; None: over ``every``.
        tokens: Tokens in a micro-batch of this rank: a function of the batch, or the key or attribute of
            the batch whose elements count. None: no tokens.
        flops: Count FLOPs.
        peak_flops: FLOP per second that one device does at most, such as ``989e12``. None: dense products
            in the run's precision on A100, H100, H200, B200, L4, T4, V100 and RTX 4090; on other devices
            there is no ``perf/mfu``, which a line reports.

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> speed = Throughput(every=4, tokens=lambda batch: batch[0].numel(), peak_flops=1e12)
        >>> trainer = Trainer(max_epochs=1, callbacks=speed, progress=False, run_dir=None)
        >>> run = trainer.fit(Net(), train_loader)
        >>> 0 < trainer.metrics["perf/mfu"] < 1, trainer.metrics["perf/tokens_per_second"] > 0
        (True, True)
    """

    def __init__(
        self,
        every: Any = 50,
        window: int | None = None,
        tokens: Callable[[Any], Any] | str | int | None = None,
        flops: bool = True,
        peak_flops: float | None = None,
    ) -> None:
        check_arguments(
            "Throughput",
            every=(every, STEPS),
            window=(window, COUNT_OR_NONE),
            tokens=(tokens, PART_OF_BATCH_OR_NONE),
            flops=(flops, SWITCH),
            peak_flops=(peak_flops, ABOVE_ZERO_OR_NONE),
        )
        self.every = int(Duration.parse(every).amount)
        self.window, self.tokens = window or self.every, tokens
        self.flops, self.peak_flops = flops, peak_flops
        self._forget()

    def _forget(self) -> None:
        self._clock = PhaseClock()
        self._marks: deque[_Mark] = deque(maxlen=min(self.window, _MOST_MARKS) + 1)
        self._in_step: list[Any] = []
        self._tokens: Any = 0
        self._peak: float | None = None
        self._flops_per_sample: float | None = None
        self._counter: FlopCounterMode | None = None
        self._counting = ExitStack()
        self._samples_before = 0

    def on_setup(self, trainer: TrainerView, stage: str) -> None:
        if stage == "fit":  # a resumed run gets its state back after this
            self._forget()

    def on_fit_start(self, trainer: TrainerView) -> None:
        if not self.flops:
            return
        device, dtype = trainer.strategy.device, trainer.strategy.precision.compute_dtype
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        self._peak = trainer.ranks.broadcast(self.peak_flops or find_peak(name, dtype))
        if self._peak is None:
            trainer.log_line(
                f"Throughput logs no perf/mfu: the peak of {name} in {str(dtype).removeprefix('torch.')} "
                "is not known; give Throughput(peak_flops=...)"
            )

    def on_step_start(self, trainer: TrainerView, batches: list[Any]) -> None:
        super().on_step_start(trainer, batches)
        if self.tokens is not None:
            self._in_step = [self._count(batch) for batch in batches]
        if self.flops and self._flops_per_sample is None and trainer.global_step:
            self._counting.close()  # of the same step, where memory ran out in it
            self._begin_counting()
            self._samples_before = trainer.counters.samples

    def _count(self, batch: Any) -> Any:
        assert self.tokens is not None
        found = part_of(batch, self.tokens)
        return found if callable(self.tokens) else found.numel()

    def _begin_counting(self) -> None:
        from torch.utils.flop_counter import FlopCounterMode

        # Compiled code that is called inside of the counter is never used again. Where this module is not
        # loaded nothing is compiled, and loading it takes a second.
        if "torch._dynamo" in sys.modules:
            self._counting.enter_context(torch.compiler.set_stance("force_eager"))
        self._counter = self._counting.enter_context(FlopCounterMode(display=False))

    def on_step_end(self, trainer: TrainerView, outputs: list[Any]) -> None:
        self._clock.enter("step")
        if self.tokens is not None:  # a batch that only keeps the ranks in step has no output
            self._tokens += sum(self._in_step[: len(outputs)])
        if self._counter is not None:
            self._end_counting(trainer)
        spent = self._clock.seconds
        seconds = spent["step"] + spent["data"]
        self._marks.append(
            _Mark(trainer.global_step, seconds, spent["data"], trainer.counters.samples, self._tokens)
        )
        if trainer.global_step % self.every == 0 and len(self._marks) > 1:
            self._publish(trainer)

    def _end_counting(self, trainer: TrainerView) -> None:
        assert self._counter is not None
        self._counting.close()
        each = trainer.ranks.gather_data(self._counter.get_total_flops())  # of split layers the whole
        counted = sum(each)
        self._flops_per_sample = counted / max(1, trainer.counters.samples - self._samples_before)
        self._counter = None
        self._marks.clear()  # counting takes time

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        self._counting.close()
        super().on_teardown(trainer, stage)

    def _publish(self, trainer: TrainerView) -> None:
        first, last = self._marks[0], self._marks[-1]
        tokens = float(last.tokens - first.tokens)
        everyone = trainer.ranks.all_gather(
            [last.seconds - first.seconds, last.waiting - first.waiting, tokens]
        )
        seconds = max(everyone[0][0], 1e-9)
        values = {
            "steps_per_second": (last.step - first.step) / seconds,
            "data_wait_share": max(waiting / max(whole, 1e-9) for whole, waiting, _ in everyone),
        }
        if self.tokens is not None:
            own = trainer.strategy.collectives.one_per_data_rank(everyone)
            values["tokens_per_second"] = sum(one[2] for one in own) / seconds
        if self._flops_per_sample is not None:
            samples = (last.samples - first.samples) / seconds / trainer.world_size
            values["tflops_per_device"] = self._flops_per_sample * samples / 1e12
            if self._peak is not None:
                values["mfu"] = self._flops_per_sample * samples / self._peak
        trainer.publish({f"perf/{name}": value for name, value in values.items()})

    def state_dict(self) -> dict[str, Any]:
        found = self._flops_per_sample
        return {} if found is None else {"flops_per_sample": found}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        found = state.get("flops_per_sample")
        self._flops_per_sample = float(found) if self.flops and found is not None else None
