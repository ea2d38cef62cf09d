"""Ctrl-C and SIGTERM: stop at the next step boundary, where the state is whole."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..errors import mark_told
from ..strategies.launch import is_supervised, note_stop

_ONE_SIGNAL = 1.0  # a batch system and the launcher both send it: that is one
_WATCHED = (signal.SIGINT, signal.SIGTERM)


class SignalStop:
    """Turns the first signal into a stop request and the second into an immediate exit.

    The handlers that were there before are put back by ``close``. Python runs handlers in the main thread
    only: elsewhere nothing is installed.
    """

    def __init__(self, stop: Callable[[str, int], None]) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}
        self.received: int | None = None
        self._at = 0.0
        if threading.current_thread() is threading.main_thread():
            for number in _WATCHED:
                self._before[number] = signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.received is not None:
            if now - self._at > _ONE_SIGNAL:
                os._exit(128 + number)
            return
        self.received, self._at = number, now
        # A write to the descriptor: print may be under way in the very thread that is interrupted.
        os.write(2, b"\nstopping at the end of this step; a second signal ends at once\n")
        self._stop(f"{signal.Signals(number).name} received", number)

    def close(self) -> None:
        """Put the earlier handlers back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def reraise(self, agreed: int | None) -> None:
        """After an orderly stop, end the process as the signal meant: nothing of the script runs on.

        Args:
            agreed: The signal that stopped the run, which may have come to another rank.
        """
        number = agreed or self.received
        if number is None:
            return
        if is_supervised():
            note_stop(number)  # any other exit code is a failure to the agent
            raise SystemExit(0)
        if number == signal.SIGINT:
            interrupt = KeyboardInterrupt()
            mark_told(interrupt)
            raise interrupt
        raise SystemExit(128 + number)
