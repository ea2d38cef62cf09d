"""Where the threads of this process are."""

from __future__ import annotations

import sys
import threading
import traceback


def all_stacks() -> str:
    """The Python stacks of all threads, this one's first; no source lines, whose files may not answer.

    ``faulthandler.dump_traceback`` takes no lock, since it is made for signal handlers: it ends the process
    where a thread of another library comes to Python meanwhile, as those of collectives do.
    """
    here = threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for thread, frame in sorted(sys._current_frames().items(), key=lambda item: item[0] != here):
        parts.append(f"Thread {thread:#x}, {names.get(thread, 'not of Python')} (most recent call first):")
        parts.extend(
            f'  File "{at.f_code.co_filename}", line {line} in {at.f_code.co_name}'
            for at, line in traceback.walk_stack(frame)
        )
        parts.append("")
    return "\n".join(parts)
