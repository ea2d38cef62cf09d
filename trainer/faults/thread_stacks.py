"""Where the threads of this process are."""

from __future__ import annotations

import itertools
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType

STACKS = "stacks"
"""The folder, in that of a run or of a job, in which ranks ask each other for their stacks."""


def set_stacks_aside(folder: Path) -> None:
    """Rename those of an earlier attempt: another one would take their questions for its own."""
    stacks = folder / STACKS
    if stacks.exists():
        number = next(n for n in itertools.count(1) if not (folder / f"{STACKS}-{n}").exists())
        stacks.rename(folder / f"{STACKS}-{number}")


def all_stacks() -> str:
    """The Python stacks of all threads, this one's first; no source lines, whose files may not answer.

    ``faulthandler.dump_traceback`` takes no lock, since it is made for signal handlers: it ends the process
    where a thread of another library enters Python meanwhile, as those of collectives do.
    """
    here = threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {thread:#x}, {names.get(thread, 'foreign')} (most recent call first):\n{_stack(frame)}"
        for thread, frame in sorted(sys._current_frames().items(), key=lambda item: item[0] != here)
    )


def _stack(frame: FrameType) -> str:
    """A line for each frame, each with an end of line."""
    return "".join(
        f'  File "{at.f_code.co_filename}", line {line} in {at.f_code.co_name}\n'
        for at, line in traceback.walk_stack(frame)
    )
