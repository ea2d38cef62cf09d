"""Where a run is: its counters, its clock and its limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torch import Tensor

from ..durations import StepPosition


@dataclass(slots=True)
class TrainState:
    """The counters of a run. A checkpoint writes exactly these.

    Attributes:
        global_step: Optimizer steps done over the whole run.
        epoch: The current epoch, from 0; after the last one, the number of epochs done.
        position: How far the epoch's order is consumed by finished steps, in samples.
        epoch_start: The value of ``global_step`` when the epoch began.
        batch_idx: Micro-batches of this epoch that this rank has done.
        samples: Samples trained on over the whole run, all ranks.
        tokens: The weights that ``training_step`` returned, summed up to the last log point, all ranks.
        elapsed: Seconds of training, earlier sessions of a resumed run included.
        skipped_steps: Updates skipped because a loss or gradient was not finite.
        overflowed_steps: Updates skipped because scaled gradients overflowed (``precision="fp16"``).
        steps_without_loss: Updates skipped because ``training_step`` returned None.
        weight_reference: The power of two that returned weights are divided by; None until needed.
        validated_step: The step of the last validation; -1 before the first.
        validating: What the current validation follows, ``"step"`` or ``"epoch"``; "" outside of one. It
            is in a checkpoint where a signal interrupted it: the resumed run repeats it.
        global_batch: Samples in a full step, as the run began; 0 where it is not known.
        micro_batch: The most samples that a rank takes at once, where ``batch_size="auto"`` has found them;
            0 elsewhere.
        decay_start: The step from which ``fit(decay=...)`` has the last decay; -1 without one.
        decay_steps: How many steps that decay has.
        epoch_lengths: Where loaders are made again: from which epoch on an epoch has how many steps, as the
            run began. A resumed run shows ``configure_optimizers`` the same.
    """

    global_step: int = 0
    epoch: int = 0
    position: int = 0
    epoch_start: int = 0
    batch_idx: int = 0
    samples: int = 0
    tokens: float = 0.0
    elapsed: float = 0.0
    skipped_steps: int = 0
    overflowed_steps: int = 0
    steps_without_loss: int = 0
    weight_reference: float | None = None
    validated_step: int = -1
    validating: str = ""
    global_batch: int = 0
    micro_batch: int = 0
    decay_start: int = -1
    decay_steps: int = 0
    epoch_lengths: list[list[int | None]] = field(default_factory=list)

    @property
    def step_label(self) -> str:
        """The current step, for messages."""
        return f"step {self.global_step + 1}, epoch {self.epoch + 1}"

    def begin_epoch(self) -> None:
        """Nothing of the current epoch is done."""
        self.epoch_start = self.global_step
        self.position = self.batch_idx = 0

    def after_step(self, epoch_ended: bool, limits: Limits) -> StepPosition:
        """The position after the step that was just counted."""
        step_in_epoch = self.global_step - self.epoch_start
        length = limits.steps_in(self.epoch)
        return StepPosition(self.global_step, self.epoch, step_in_epoch, epoch_ended, length)

    def at_boundary(self, limits: Limits) -> StepPosition:
        """The position at a step boundary, where an epoch that has ended is counted already."""
        if self.position == 0:
            length = limits.steps_in(self.epoch - 1)
            return StepPosition(self.global_step, self.epoch - 1, length or 1, True, length)
        return self.after_step(False, limits)

    def state_dict(self) -> dict[str, Any]:
        """All counters, as plain data."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned; a counter it lacks keeps its default."""
        for one in fields(self):
            if one.name in state:
                setattr(self, one.name, state[one.name])


@dataclass(slots=True)
class StepState:
    """The step under way, and where the loops are in it; nothing of it is saved.

    Attributes:
        batches: This rank's micro-batches, on the device.
        sizes: The samples in each of them.
        total: The samples of all ranks; None where they are known to nobody yet.
        outputs: What ``training_step`` returned so far.
        losses: This rank's losses with their weights, on a CPU as numbers.
        weights: Those that ``training_step`` returned with its losses.
        sum_of_weights: Waits for their sum over all ranks; None without weights.
        gradient_norm: Before clipping; None where it was not measured.
        skips_update: Whether the step is to end without an update.
        validates: Whether a validation was asked for after it.
        next_event: The step after which more than the next one may be due.
        between_steps: Whether the state of the run is that of a finished step; also in a validation, which
            a resumed run repeats.
        indices: Gives the dataset indices of the batch that an evaluation is at; empty where unknown.
    """

    batches: list[Any] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    total: int | None = None
    outputs: list[Any] = field(default_factory=list)
    losses: list[tuple[Any, Any]] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    sum_of_weights: Callable[[], Tensor] | None = None
    gradient_norm: Any = None
    skips_update: bool = False
    validates: bool = False
    next_event: float = 0.0
    between_steps: bool = False
    indices: Callable[[], list[Any]] = list

    def begin(self, batches: list[Any], sizes: list[int], total: int | None) -> None:
        """The next step begins with these micro-batches."""
        self.batches, self.sizes, self.total = batches, sizes, total
        self.outputs, self.losses, self.weights = [], [], []
        self.sum_of_weights = self.gradient_norm = None


class Clock:
    """Seconds of training, earlier sessions of a resumed run included.

    Args:
        state: Its ``elapsed`` is where they are kept while the clock is stopped.
    """

    def __init__(self, state: TrainState) -> None:
        self._state = state
        self._started: float | None = None

    def seconds(self) -> float:
        """Seconds so far."""
        if self._started is None:
            return self._state.elapsed
        return self._state.elapsed + time.perf_counter() - self._started

    def start(self) -> None:
        """Count from here on."""
        self._started = time.perf_counter()

    def stop(self) -> None:
        """Count no longer."""
        self._state.elapsed, self._started = self.seconds(), None


class Limits:
    """When a run ends: the first limit reached. Without any it trains one epoch.

    Args:
        max_steps: Optimizer steps over the whole run.
        max_epochs: Epochs over the whole run.
        max_time: As the user wrote it, for messages.
        max_seconds: The same in seconds.
        min_steps: Optimizer steps that a stop waits for.
        min_epochs: Epochs that it waits for.

    Attributes:
        unlimited: Whether no limit was given.
        decay_steps: The steps of a last decay that ends the run; None without one.
    """

    def __init__(
        self,
        max_steps: int | None = None,
        max_epochs: int | None = None,
        max_time: Any = None,
        max_seconds: float | None = None,
        min_steps: int | None = None,
        min_epochs: int | None = None,
    ) -> None:
        self.min_steps, self.min_epochs = min_steps or 0, min_epochs or 0
        self.unlimited = max_steps is max_epochs is max_seconds is None
        self.max_steps = max_steps
        self.max_epochs = 1 if self.unlimited else max_epochs
        self._max_time, self.max_seconds = max_time, max_seconds
        self.decay_steps: int | None = None
        self._lengths: dict[int, int | None] = {0: None}

    def set_epoch_length(self, steps: int | None, epoch: int = 0) -> None:
        """The data is known: so many optimizer steps are an epoch, from this one on."""
        self._lengths = {n: length for n, length in self._lengths.items() if n < epoch} | {epoch: steps}

    def end_after_decay(self, start: int, steps: int) -> None:
        """The run ends so many steps after ``start``, whatever the limits on steps and epochs were."""
        self.max_steps, self.max_epochs, self.unlimited = start + steps, None, False
        self.decay_steps = steps

    @property
    def lengths(self) -> list[list[int | None]]:
        """From which epoch on an epoch has how many steps: for ``set_lengths``."""
        return [[epoch, steps] for epoch, steps in self._lengths.items()]

    def set_lengths(self, lengths: list[list[int | None]]) -> None:
        """Take what ``lengths`` gave."""
        self._lengths = {0: None}
        for epoch, steps in sorted(lengths, key=lambda one: one[0] or 0):
            self._lengths[epoch or 0] = steps

    def steps_in(self, epoch: int) -> int | None:
        """The optimizer steps in an epoch; None where the data has no length, or none yet."""
        return next(length for first, length in reversed(self._lengths.items()) if first <= max(epoch, 0))

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps until the limits on epochs and steps; None where that is unknown."""
        limits = [] if self.max_steps is None else [self.max_steps]
        if self.max_epochs is not None:
            ends = [*list(self._lengths)[1:], self.max_epochs]
            parts = zip(self._lengths.items(), ends, strict=True)
            epochs = [(max(0, min(end, self.max_epochs) - first), steps) for (first, steps), end in parts]
            if all(steps is not None for count, steps in epochs if count):
                limits.append(sum(count * (steps or 0) for count, steps in epochs))
        return min(limits, default=None)

    def below_minimum(self, state: TrainState) -> bool:
        """Whether a stop that a callback asked for has to wait."""
        return state.global_step < self.min_steps or state.epoch < self.min_epochs

    def reached(self, state: TrainState, clock: Clock | Any) -> str | None:
        """Which limit is reached, in words; None for none.

        Args:
            state: The counters of the run.
            clock: Anything with ``seconds()``; asked only where time is limited.
        """
        if self.max_steps is not None and state.global_step >= self.max_steps:
            return f"max_steps={self.max_steps} reached"
        if self.max_epochs is not None and state.epoch >= self.max_epochs:
            return f"max_epochs={self.max_epochs} reached"
        if self.max_seconds is not None and clock.seconds() >= self.max_seconds:
            return f"max_time={self._max_time} reached"
        return None
