"""How a run ended, as far as its folder says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .lock import is_held

_BEGUN = re.compile(r"paceline \S+: .+ in ")
_ENDED = re.compile(r"; ended: (.+)|nothing to do: the run is at its limit already \((.+)\)$")
_FAILED = "Traceback (most recent call last):"


@dataclass(frozen=True)
class Ending:
    """How a run ended.

    Attributes:
        state: ``"running"``: a process of this machine trains in the folder. ``"ended"``: in order, also by
            a signal. ``"failed"``: with an error. ``"unknown"``: its log does not say, as of a run that was
            killed, of one on another machine, and where ``progress=False`` said nothing at the end.
        reason: Why it ended, or the first line of its error; None where that is not known.
    """

    state: str
    reason: str | None


STATES = ("running", "ended", "failed", "unknown")


def read_ending(folder: Path) -> Ending:
    """How the run in a folder ended, of several sessions the last one."""
    if is_held(folder):
        return Ending("running", None)
    file = folder / "log.txt"
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    found, above_error = Ending("unknown", None), False
    for line in (line.partition(" ")[2] for line in text.splitlines()):
        if _BEGUN.match(line):
            found = Ending("unknown", None)
        elif ended := _ENDED.search(line):
            found = Ending("ended", ended[1] or ended[2])
        elif line.endswith(_FAILED):
            found, above_error = Ending("failed", None), line == _FAILED  # else that of an exception group
        elif above_error and line[:1].strip():  # below the frames
            found, above_error = Ending("failed", line), False
    return found
