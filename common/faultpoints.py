"""Named places at which a test lets something happen to a run; in any other run they do nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_VARIABLE = "PACELINE_FAULTS"


@dataclass
class Fault:
    """What is to happen at a place.

    Args:
        place: The name given to ``faultpoint``.
        what: A signal's name, for this process; ``raise``, ``hang``, or ``exit``.
        time: At which passing of the place, from 1.
        rank: On which rank; None: on all of them.
    """

    place: str
    what: str
    time: int = 1
    rank: int | None = None
    passed: int = 0

    def meet(self) -> None:
        """The place is passed once more."""
        self.passed += 1
        if self.passed != self.time:
            return
        if self.what == "raise":
            raise RuntimeError(f"a fault at {self.place}")
        if self.what == "hang":
            time.sleep(3600)
        elif self.what == "exit":
            os._exit(3)
        else:
            os.kill(os.getpid(), signal.Signals[self.what])


_armed: list[Fault] = []


def faultpoint(place: str) -> None:
    """A named place of a run."""
    if _armed:
        rank = int(os.environ.get("RANK", "0"))
        for fault in [f for f in _armed if f.place == place and f.rank in (None, rank)]:
            fault.meet()


def with_faultpoint(place: str, call: Callable[..., Any], after: bool = False) -> Callable[..., Any]:
    """``call`` itself; where faults are armed already, what passes the place before it, or ``after`` it."""
    if not _armed:
        return call

    def passing(*args: Any) -> Any:
        if not after:
            faultpoint(place)
        result = call(*args)
        if after:
            faultpoint(place)
        return result

    return passing


def arm(*faults: Fault) -> None:
    """Let these happen in this process, and no others."""
    _armed[:] = faults


def _read(text: str) -> list[Fault]:
    """``PACELINE_FAULTS="step.backward SIGTERM 3 1; ..."``: place, what, and where given time and rank."""
    parts = [one.split() for one in text.split(";") if one.strip()]
    return [Fault(place, what, *map(int, numbers)) for place, what, *numbers in parts]


arm(*_read(os.environ.get(_VARIABLE, "")))
