"""Passes rows of values to a logger without waiting for it, and without failing where it fails."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

Row = dict[str, float]
MOST_ROWS = 1000
MOST_FAILURES = 10
_END: Any = object()


class RowWriter:
    """One logger and the rows that wait for it.

    Args:
        write: Takes a row.
        name: The logger's, for messages.
        log_line: Takes a line for the log; never called in the thread of the queue.
        background: Call ``write`` in a thread, from a queue of ``MOST_ROWS`` rows; else in ``put`` itself.

    Example:
        >>> rows = []
        >>> writer = RowWriter(rows.append, "Rows", print, background=True)
        >>> writer.put({"step": 1})
        >>> writer.close(seconds=10)
        >>> rows
        [{'step': 1}]
    """

    def __init__(
        self,
        write: Callable[[Row], None],
        name: str,
        log_line: Callable[[str], None],
        *,
        background: bool,
    ) -> None:
        self._write_row, self._name, self._log_line = write, name, log_line
        self._background = background
        self._rows: queue.Queue[Any] = queue.Queue(MOST_ROWS)
        self._thread: threading.Thread | None = None
        self._first_error: str | None = None
        self._failures = self._missing = 0
        self._off = self._left = self._reported = self._reported_off = False

    def put(self, row: Row) -> None:
        """Pass a row on. One that finds the queue full, or the logger switched off, is counted."""
        self._report()
        if self._off:
            self._missing += 1
        elif not self._background:
            self._write(dict(row))
            self._report()
        else:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="logger", daemon=True)
                self._thread.start()
            try:
                self._rows.put_nowait(dict(row))
            except queue.Full:
                self._missing += 1

    def flush(self, seconds: float) -> bool:
        """Wait until the logger has all rows. Whether it has.

        Args:
            seconds: The most to wait.
        """
        if self._thread is None:
            return True
        reached = threading.Event()
        try:
            self._rows.put(reached, timeout=seconds)
        except queue.Full:
            return False
        found = reached.wait(seconds)
        self._report()
        return found

    def close(self, seconds: float) -> None:
        """Flush, end the thread, and report how many rows are missing. A row may be put again later.

        Args:
            seconds: The most to wait; a thread that a logger holds longer is left to end by itself.
        """
        if self._thread is not None and self.flush(seconds):
            self._rows.put(_END)
            self._thread.join()
        elif self._thread is not None:
            self._off = self._left = True
            self._missing += sum(isinstance(row, dict) for row in list(self._rows.queue)) + 1
            self._log_line(f"warning: {self._name} still writes after {seconds:g} s and is not waited for")
        self._thread = None
        self._report()
        if self._missing:
            rows = f"{self._missing} row{'s' if self._missing > 1 else ''}"
            self._log_line(f"warning: {self._name} did not get {rows}")
            self._missing = 0

    def _run(self) -> None:
        while not self._left and (row := self._rows.get()) is not _END:
            if isinstance(row, threading.Event):
                row.set()
            elif self._off:
                self._missing += 1
            else:
                self._write(row)

    def _write(self, row: Row) -> None:
        try:
            self._write_row(row)
            self._failures = 0
        except Exception as error:
            self._failures += 1
            self._missing += 1
            if self._first_error is None:
                self._first_error = f"{type(error).__name__}: {error}"
            if self._background and self._failures >= MOST_FAILURES:
                self._off = True

    def _report(self) -> None:
        if self._first_error is not None and not self._reported:
            self._reported = True
            self._log_line(
                f"warning: {self._name} could not write a row, and training continues: {self._first_error}"
            )
        if self._failures >= MOST_FAILURES and self._off and not self._reported_off:
            self._reported_off = True
            self._log_line(
                f"warning: {self._name} failed {MOST_FAILURES} times in a row: it is switched off"
            )
