"""The steps of a run, in which schedules count their durations."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..durations import Duration
from ..errors import PacelineError

_ALLOWED = 'steps (500 or "500st"), epochs ("2ep"), a part of the run ("5%")'


@dataclass(frozen=True)
class RunLength:
    """How long a run is, as far as schedules need it.

    Args:
        steps: Optimizer steps in all; None where that is unknown.
        epoch: Optimizer steps in an epoch; None where that is unknown.
        decay: The steps of the last decay, where ``fit(decay=...)`` gives them.

    Example:
        >>> RunLength(1000, 100).amount("5%", "warmup")
        50
    """

    steps: int | None
    epoch: int | None = None
    decay: int | None = None

    def amount(self, value: Any, name: str) -> int:
        """Steps in a duration or a part of the run, rounded to the next whole one.

        Args:
            value: A count of steps, a duration, or a part such as ``"5%"``.
            name: The argument, for errors.

        Raises:
            PacelineError: for anything else, and where a length is unknown that it needs.
        """
        part = re.fullmatch(r"\s*(\d{1,3}(?:\.\d{1,9})?)\s*%\s*", value) if isinstance(value, str) else None
        if part is not None and Fraction(part[1]) <= 100:
            return math.ceil(Fraction(part[1]) / 100 * self.total(f"{name}={value!r}"))
        try:
            duration = Duration.parse(value, where=name)
        except PacelineError:
            is_part = isinstance(value, float) and 0 < value <= 1
            raise PacelineError(
                f"{name} is not a duration in steps",
                code="invalid-duration",
                got=value,
                allowed=_ALLOWED,
                meant=f'"{value * 100:g}%"' if is_part else None,
            ) from None
        if duration.unit == "st":
            return int(duration.amount)
        if duration.unit == "s" or self.epoch is None:
            raise PacelineError(
                f"{name}={value!r} cannot be counted in steps before the run",
                code="run-length-unknown",
                allowed=_ALLOWED,
                fix=None if duration.unit == "s" else "count in steps: how many an epoch has is unknown",
            )
        return math.ceil(duration.amount * self.epoch)

    def total(self, who: str) -> int:
        """Optimizer steps in all.

        Raises:
            PacelineError: where they are unknown; ``who`` needs them.
        """
        if self.steps is None:
            raise PacelineError(
                f"{who} needs the length of the run, which is unknown",
                code="run-length-unknown",
                fix="Trainer(max_steps=...), or max_epochs with data that has a length",
            )
        return self.steps
