"""Durations as one value: ``500``, ``"500st"``, ``"2ep"``, ``"0.25ep"``, ``"30min"``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from typing import Any

from .errors import PacelineError

_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
ALLOWED = 'steps (500 or "500st"), epochs ("2ep", "0.25ep"), time ("30s", "30min", "2h", "1d", "00:30:00")'


@dataclass(frozen=True)
class Duration:
    """An amount of steps (``st``), epochs (``ep``) or seconds (``s``); always above zero."""

    amount: Fraction
    unit: str

    @classmethod
    def parse(cls, value: Any, *, where: str = "a duration") -> Duration:
        """Read an int (optimizer steps over the whole run), a string or a timedelta.

        Raises:
            PacelineError: for anything else, zero and negative amounts included.
        """
        parsed = cls._read(value)
        if parsed is None or parsed.amount <= 0:
            raise PacelineError(
                f"{where} is not a duration", code="invalid-duration", got=value, allowed=ALLOWED
            )
        return parsed

    @classmethod
    def _read(cls, value: Any) -> Duration | None:
        if isinstance(value, Duration):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(Fraction(value), "st")
        if isinstance(value, timedelta):
            return cls(Fraction(value.total_seconds()), "s")
        if not isinstance(value, str):
            return None
        text = value.strip()
        if clock := re.fullmatch(r"(?:(\d{1,9}):)?(\d{1,9}):(\d\d):(\d\d)", text):
            days, hours, minutes, seconds = (int(g or 0) for g in clock.groups())
            return cls(Fraction(((days * 24 + hours) * 60 + minutes) * 60 + seconds), "s")
        match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*(st|ep|s|min|h|d)?", text)
        if not match:
            return None
        amount, unit = Fraction(match[1]), match[2] or "st"
        if unit == "st" and amount.denominator != 1:
            return None
        return cls(amount * _SECONDS.get(unit, 1), "s" if unit in _SECONDS else unit)

    def __str__(self) -> str:
        return f"{float(self.amount):g}{self.unit}"


@dataclass(frozen=True, slots=True)
class StepPosition:
    """Where a run is after an optimizer step.

    Args:
        global_step: Steps done over the whole run, this one included.
        epoch: The epoch (from 0) this step belongs to.
        step_in_epoch: Steps done in that epoch.
        epoch_ended: Whether this step was the epoch's last.
        steps_in_epoch: The steps of that epoch, where they are known and epochs may differ.
    """

    global_step: int
    epoch: int
    step_in_epoch: int
    epoch_ended: bool = False
    steps_in_epoch: int | None = None


class Cadence:
    """Says, step by step, whether something that happens ``every`` so often is due.

    Args:
        every: The duration between two occurrences.
        steps_per_epoch: Optimizer steps in an epoch, None where unknown.

    Raises:
        PacelineError: for a fraction of an epoch whose length is unknown.
    """

    def __init__(self, every: Duration, steps_per_epoch: int | None) -> None:
        self.every = every
        self.steps_per_epoch = steps_per_epoch
        self._last_seconds = 0.0
        self._whole = every.amount.denominator == 1
        self._amount = int(every.amount) if self._whole else 0
        if every.unit == "ep" and not self._whole and steps_per_epoch is None:
            raise PacelineError(
                f"{every} is a part of an epoch, but the training data has no length",
                code="run-length-unknown",
                fix='count in steps ("500st") or time ("10min") instead',
            )

    def restart(self, seconds: float) -> None:
        """Count time from here; steps and epochs have their own places.

        Args:
            seconds: Of training so far.
        """
        self._last_seconds = seconds

    def due(self, at: StepPosition, clock: Callable[[], float]) -> bool:
        """True once for each occurrence, asked after each optimizer step.

        Args:
            at: Where the run is.
            clock: Gives the seconds of training so far; asked only where time counts.
        """
        if self.every.unit == "st":
            return at.global_step % self._amount == 0
        if self.every.unit == "s":
            seconds = clock()
            if seconds - self._last_seconds < self.every.amount:
                return False
            self._last_seconds = seconds
            return True
        if self._whole:
            return at.epoch_ended and (at.epoch + 1) % self._amount == 0
        return self._fraction_due(at)

    def next_step(self, at: StepPosition) -> float:
        """The earliest step after ``at`` that may be due.

        Infinite: only the epoch's end may; 0, of what goes by time: each may.

        Args:
            at: Where the run is; of an epoch that has ended, the start of the next one.
        """
        if self.every.unit == "st":
            return (at.global_step // self._amount + 1) * self._amount
        if self.every.unit == "s":
            return 0
        if self._whole:
            return math.inf
        length = at.steps_in_epoch or self.steps_per_epoch or 1
        done = at.epoch + Fraction(min(at.step_in_epoch, length - 1), length)
        step = math.ceil(((done // self.every.amount + 1) * self.every.amount - at.epoch) * length)
        return at.global_step + step - at.step_in_epoch if step < length else math.inf

    def _fraction_due(self, at: StepPosition) -> bool:
        # An epoch may turn out longer or shorter than forecast; only its real end is a whole one.
        length = at.steps_in_epoch or self.steps_per_epoch or 1
        in_epoch = length if at.epoch_ended else min(at.step_in_epoch, length - 1)
        now = (at.epoch + Fraction(in_epoch, length)) / self.every.amount
        before = (at.epoch + Fraction(min(at.step_in_epoch - 1, length - 1), length)) / self.every.amount
        return now // 1 > before // 1
