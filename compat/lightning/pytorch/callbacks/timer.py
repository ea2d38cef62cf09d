"""``Timer`` with Lightning's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ..... import callbacks as ours
from .....durations import Duration
from .callback import Callback
from .overrides import refuse_overrides


class _TimedStop(ours.Timer):
    """Ours, which also ends the run."""

    limit: float | None = None

    def on_step_boundary(self, trainer: Any) -> None:
        super().on_step_boundary(trainer)
        if self.limit is not None and trainer.counters.seconds() >= self.limit:
            trainer.stop(f"Timer: {self.limit:g} s of training")


class Timer(Callback):
    """Ends the run after a time of training, and says how long its parts took.

    Args:
        duration: ``"00:12:00:00"`` (days, hours, minutes, seconds), a timedelta, or its arguments.
        interval: Accepted: the time is looked at after each step.
        verbose: Accepted.
    """

    def __init__(self, duration: Any = None, interval: str = "step", verbose: bool = True) -> None:
        duration = timedelta(**duration) if isinstance(duration, Mapping) else duration
        self._limit = None if duration is None else float(Duration.parse(duration).amount)
        self._made = _TimedStop()
        self._made.limit = self._limit

    def ours(self, trainer: Any) -> list[Any]:
        refuse_overrides(self, Timer)
        return [self._made]

    def time_elapsed(self, stage: str = "train") -> float:
        """Seconds in ``"train"`` or ``"validate"``."""
        return self._made.seconds("validation" if str(stage).startswith("val") else "train")

    def state_dict(self) -> dict[str, Any]:
        """What programs read of a checkpoint's ``callbacks``; a resumed run has its own."""
        return {"time_elapsed": {stage: self.time_elapsed(stage) for stage in ("train", "validate")}}

    def time_remaining(self, stage: str = "train") -> float | None:
        """Seconds until the end; None without a limit."""
        return None if self._limit is None else max(self._limit - self.time_elapsed(stage), 0.0)
