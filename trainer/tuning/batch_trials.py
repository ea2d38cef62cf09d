"""Trials of batch sizes: whether the memory of each rank holds one, and how fast it is."""

from __future__ import annotations

import gc
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from ...callbacks import Callback
from ...errors import PacelineError
from ..faults.out_of_memory import is_out_of_memory
from ..trial import batch_size_of, own_device, run_trial, with_batch_size
from ..utils.text import first_line


@dataclass(frozen=True)
class BatchSizeTrial:
    """One batch size that was tried.

    Attributes:
        batch_size: Samples in a micro-batch.
        fits: Whether memory was enough, on all ranks.
        peak_bytes: The most that was allocated on a device; None where the device does not tell.
        samples_per_second: Of one rank, the slowest, after the first step; None where it does not fit.
    """

    batch_size: int
    fits: bool
    peak_bytes: int | None
    samples_per_second: float | None


class _Meter(Callback):
    """Notes when each step ended, and the samples until then."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, int]] = []

    def on_fit_start(self, trainer: Any) -> None:
        self._ends.append((time.perf_counter(), 0))

    def on_step_boundary(self, trainer: Any) -> None:
        if trainer.counters.samples > self._ends[-1][1]:
            if trainer.strategy.device.type != "cpu":
                torch.accelerator.synchronize(trainer.strategy.device)
            self._ends.append((time.perf_counter(), trainer.counters.samples))

    @property
    def first_step(self) -> int | None:
        """The samples of the first step; None where it did not end."""
        return self._ends[1][1] if len(self._ends) > 1 else None

    @property
    def speed(self) -> float:
        """Samples per second; the first step, which prepares, does not count where there are others."""
        (begin, before), (end, after) = self._ends[len(self._ends) > 2], self._ends[-1]
        return (after - before) / max(end - begin, 1e-9)


class Trials:
    """Tries batch sizes, of several ranks each by itself.

    A rank that runs out of memory inside a step of all ranks would leave the others waiting in it.

    Args:
        trainer: Whose run is tried.
        module: A copy of it is trained.
        data: The training dataloader and the DataModule, as ``fit`` takes them.
        steps: Optimizer steps of each trial.
        size: The first batch size; None: the loader's own.
        most: The largest one.
        accumulate: Micro-batches in a step: with 2, gradients are kept from one to the next.

    Attributes:
        size: What ``run`` tries next.
        most: The largest that the data has, at most ``most``.
        accumulate: May be changed between two trials, as ``size`` may.
    """

    def __init__(
        self,
        trainer: Any,
        module: Any,
        data: tuple[Any, Any],
        steps: int,
        size: int | None,
        most: int,
        accumulate: int,
    ) -> None:
        self._trainer, self._module, self._data, self._steps = trainer, module, data, steps
        self.size, self.most, self.accumulate = size, most, accumulate

    def _resized(self, loader: Any) -> Any:
        own = batch_size_of(loader)
        if own is None:
            raise PacelineError(
                "find_batch_size changes the batch size of the loader, and this data's cannot be changed",
                code="search-not-possible",
                got=type(loader).__name__,
                fix="a DataLoader with a batch_size",
            )
        with suppress(TypeError, NotImplementedError):  # a stream, or a sampler without a length
            self.most = min(self.most, max(len(loader.batch_sampler.sampler) // self.accumulate, 1))
        self.size = min(self.size or own, self.most)
        return with_batch_size(loader, self.size, drop_last=False)

    def run(self) -> BatchSizeTrial | None:
        """Try ``size``, on all ranks; None where the data has no batch of that size.

        Raises:
            Exception: what a step raised that is not out of memory; a PacelineError on the other ranks.
        """
        trainer, meter = self._trainer, _Meter()
        device = own_device(trainer.strategy)
        if device.type != "cpu":
            with suppress(Exception):
                torch.accelerator.reset_peak_memory_stats(device)
        fits, failed = False, None
        try:
            fits = self._fits(meter)
        except Exception as error:  # raised when the other ranks know
            failed = error
        peak = _peak(device)
        gc.collect()  # an error's frames hold the tensors of its step
        if device.type != "cpu":
            torch.accelerator.empty_cache()
        reason = None if failed is None else first_line(failed)
        reasons = trainer.ranks.all_gather(reason)
        if failed is not None:
            raise failed
        rank = next((rank for rank, one in enumerate(reasons) if one is not None), None)
        if rank is not None:
            what = f"a trial of batch size {self.size} failed on rank {rank}"
            raise PacelineError(what, code="search-not-possible", got=reasons[rank])
        assert self.size is not None
        found = trainer.ranks.all_gather((fits, peak, meter.first_step, meter.speed if fits else 0.0))
        if any(first is not None and first < self.size * self.accumulate for _, _, first, _ in found):
            return None
        fits = all(one[0] for one in found)
        peaks = [one[1] for one in found if one[1] is not None]
        speed = min(one[3] for one in found) if fits else None
        return BatchSizeTrial(self.size, fits, max(peaks, default=None), speed)

    def _fits(self, meter: _Meter) -> bool:
        environment = self._trainer.strategy.environment
        several = bool(environment.world_size > 1 or environment.starts)
        try:
            run_trial(
                self._trainer,
                self._module,
                self._data,
                self._steps,
                meter,
                change_loader=self._resized,
                alone=several,
                accumulate=self.accumulate,
                global_batch_size=None,
                nonfinite="ignore",
            )
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return False
        return True


def _peak(device: torch.device) -> int | None:
    if device.type != "cpu":
        with suppress(Exception):
            return int(torch.accelerator.max_memory_allocated(device))
    return None
