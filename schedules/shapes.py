"""The schedules: how the rate continues after a warm-up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..common.argument_checks import ABOVE_ZERO, COUNT, COUNT_OR_NONE, PART, one_of
from .rate_schedule import RateSchedule
from .run_length import RunLength


def between(first: float, last: float, step: int, steps: int, shape: str) -> float:
    """From ``first`` at step 0 to ``last`` at step ``steps``, and from there on."""
    part = min(step / steps, 1.0) if steps > 0 else float(step > 0)
    if shape == "cosine":
        part = (1 - math.cos(math.pi * part)) / 2
    elif shape == "sqrt":
        part = math.sqrt(part)
    return first + (last - first) * part


@dataclass(frozen=True, kw_only=True)
class Constant(RateSchedule):
    """A warm-up, then the optimizer's own rate.

    Args:
        warmup: A duration or a part of the run; 0 for none.
        warmup_start: The first factor of the warm-up; None: 1 / (n + 1).

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> [Constant(warmup=3).factor(step, RunLength(5)) for step in range(5)]
        [0.25, 0.5, 0.75, 1.0, 1.0]
    """

    def after_warmup(self, step: int, steps: int, length: RunLength) -> float:
        return 1.0

    def _steps(self, length: RunLength) -> int:
        return length.steps or 0


@dataclass(frozen=True, kw_only=True)
class Linear(RateSchedule):
    """A warm-up, then a straight line that has reached ``end`` when the run is over.

    Args:
        warmup: A duration or a part of the run; 0 for none.
        warmup_start: The first factor of the warm-up; None: 1 / (n + 1).
        end: The last part of the rate, from 0 to 1.

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> [Linear(end=0.5).factor(step, RunLength(2)) for step in range(3)]
        [1.0, 0.75, 0.5]
    """

    end: float = 0.0

    def __post_init__(self) -> None:
        self._check("warmup", end=(self.end, PART))

    def after_warmup(self, step: int, steps: int, length: RunLength) -> float:
        return between(1.0, self.end, step, steps, "linear")


@dataclass(frozen=True, kw_only=True)
class Cosine(RateSchedule):
    """A warm-up, then half a cosine that has reached ``end`` when the run is over.

    SGDR without restarts (Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983).

    Args:
        warmup: A duration or a part of the run; 0 for none.
        warmup_start: The first factor of the warm-up; None: 1 / (n + 1).
        end: The last part of the rate, from 0 to 1.

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> [round(Cosine(end=0.1).factor(step, RunLength(4)), 3) for step in range(5)]
        [1.0, 0.868, 0.55, 0.232, 0.1]
    """

    end: float = 0.0

    def __post_init__(self) -> None:
        self._check("warmup", end=(self.end, PART))

    def after_warmup(self, step: int, steps: int, length: RunLength) -> float:
        return between(1.0, self.end, step, steps, "cosine")


@dataclass(frozen=True, kw_only=True)
class CosineWithRestarts(RateSchedule):
    """A warm-up, then halves of a cosine, each from the whole rate to ``end``.

    SGDR (Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983) with periods of one length.

    Args:
        warmup: A duration or a part of the run; 0 for none.
        warmup_start: The first factor of the warm-up; None: 1 / (n + 1).
        cycles: How many.
        end: The last part of the rate, from 0 to 1.

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> [round(CosineWithRestarts(cycles=2).factor(step, RunLength(4)), 3) for step in range(5)]
        [1.0, 0.5, 1.0, 0.5, 0.0]
    """

    cycles: int = 1
    end: float = 0.0

    def __post_init__(self) -> None:
        self._check("warmup", cycles=(self.cycles, COUNT), end=(self.end, PART))

    def after_warmup(self, step: int, steps: int, length: RunLength) -> float:
        if step >= steps:
            return self.end
        return between(1.0, self.end, self.cycles * step % steps, steps, "cosine")


@dataclass(frozen=True, kw_only=True)
class Polynomial(RateSchedule):
    """A warm-up, then a power of what is left of the run, that has reached ``end`` when it is over.

    Args:
        warmup: A duration or a part of the run; 0 for none.
        warmup_start: The first factor of the warm-up; None: 1 / (n + 1).
        power: 1 is a straight line.
        end: The last part of the rate, from 0 to 1.

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> [Polynomial(power=2).factor(step, RunLength(4)) for step in range(5)]
        [1.0, 0.5625, 0.25, 0.0625, 0.0]
    """

    power: float = 1.0
    end: float = 0.0

    def __post_init__(self) -> None:
        self._check("warmup", power=(self.power, ABOVE_ZERO), end=(self.end, PART))

    def after_warmup(self, step: int, steps: int, length: RunLength) -> float:
        left = max(0.0, 1 - step / steps) if steps > 0 else float(step == 0)
        return float(self.end + (1 - self.end) * left**self.power)


@dataclass(frozen=True, kw_only=True)
class InverseSqrt(RateSchedule):
    """A warm-up, then the inverse square root of the step: of no end, and no length.

    Of the Transformer (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, equation 3).

    Args:
        warmup: A duration or a part of the run; 0 for none.
        warmup_start: The first factor of the warm-up; None: 1 / (n + 1).
        timescale: Steps after the warm-up until half of the square of the rate is left; None: the steps of
            the warm-up, or 10,000 without one.

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> [round(InverseSqrt(timescale=1).factor(step, RunLength(None)), 3) for step in range(4)]
        [1.0, 0.707, 0.577, 0.5]
    """

    timescale: int | None = None

    def __post_init__(self) -> None:
        self._check("warmup", timescale=(self.timescale, COUNT_OR_NONE))

    def after_warmup(self, step: int, steps: int, length: RunLength) -> float:
        warmup = length.amount(self.warmup, "warmup") if self.warmup else 0
        scale = self.timescale or warmup or 10_000
        return math.sqrt(scale / (step + scale))

    def _steps(self, length: RunLength) -> int:
        return length.steps or 0


_SHAPES = one_of("linear", "cosine", "sqrt")


@dataclass(frozen=True, kw_only=True)
class WSD(RateSchedule):
    """A warm-up, a long stable part, and a decay at the run's end.

    Warmup-stable-decay (Hu et al. 2024, https://arxiv.org/abs/2404.06395). A decay can be branched from any
    checkpoint of the stable part: ``trainer.fit(module, data, resume=path, decay="10%")``.

    Args:
        warmup: A duration or a part of the run; 0 for none.
        warmup_start: The first factor of the warm-up; None: 1 / (n + 1).
        decay: The duration of the last part, or its part of the run.
        end: The last part of the rate, from 0 to 1.
        shape: ``"linear"``, ``"cosine"``, or ``"sqrt"``: 1 - sqrt(t) (Hägele et al. 2024,
            https://arxiv.org/abs/2405.18392).

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> [WSD(decay=2).factor(step, RunLength(5)) for step in range(6)]
        [1.0, 1.0, 1.0, 1.0, 0.5, 0.0]
    """

    decay: Any = "10%"
    end: float = 0.0
    shape: str = "linear"

    def __post_init__(self) -> None:
        self._check("warmup", "decay", end=(self.end, PART), shape=(self.shape, _SHAPES))

    def after_warmup(self, step: int, steps: int, length: RunLength) -> float:
        decay = length.amount(self.decay, "decay") if length.decay is None else length.decay
        decay = min(decay, steps)
        return between(1.0, self.end, max(0, step - (steps - decay)), decay, self.shape)
