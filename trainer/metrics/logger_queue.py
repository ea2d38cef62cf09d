"""Passes rows and media to a logger without waiting for it, and without failing where it fails."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ...callbacks.loggers.logger import Logger
from ...callbacks.loggers.media import Media

Row = dict[str, float]
MOST_ROWS = 1000
MOST_BYTES = 64 * 2**20  # of media that wait
MOST_FAILURES = 10


class _Item(NamedTuple):
    kind: str  # for messages: "row", "image" ...
    write: Callable[[], None]
    nbytes: int


_END: Any = object()


class LoggerQueue:
    """One logger and what waits for it: ``MOST_ROWS`` rows and media, ``MOST_BYTES`` of media.

    Args:
        logger: Called in a thread, or in ``put`` itself where its ``background`` is False.
        log_line: Takes a line for the log; never called in the thread.

    Example:
        >>> class Printer(Logger):
        ...     def write(self, row):
        ...         print(row)
        >>> queue = LoggerQueue(Printer(), print)
        >>> queue.put({"step": 1})
        >>> queue.close(seconds=10)
        {'step': 1}
    """

    def __init__(self, logger: Logger, log_line: Callable[[str], None]) -> None:
        self._logger, self._name, self._log_line = logger, type(logger).__name__, log_line
        self._items: queue.Queue[Any] = queue.Queue(MOST_ROWS)
        self._waiting_bytes = 0
        self._lock = threading.Lock()  # of the bytes, which two threads count
        self._thread: threading.Thread | None = None
        self._first_error: tuple[str, str] | None = None
        self._writing: _Item | None = None
        self._failures = 0
        self._missing: Counter[str] = Counter()
        self._refused: set[type] = set()
        self._off = self._left = self._reported = self._reported_off = False

    def put(self, row: Row) -> None:
        """Pass a row on. One that finds the queue full, or the logger switched off, is counted."""
        self._put(_Item("row", partial(self._logger.write, dict(row)), 0))

    def put_media(self, row: Row, name: str, media: Media) -> None:
        """Pass an image, histogram, table or text on, of a kind that the logger shows."""
        write = partial(self._logger.write_media, dict(row), name, media)
        self._put(_Item(type(media).__name__.lower(), write, media.nbytes))

    def shows(self, kind: type, name: str) -> bool:
        """Whether the logger shows media of a kind; the first time it does not, a line says so."""
        if issubclass(kind, self._logger.shows):
            return True
        if kind not in self._refused:
            self._refused.add(kind)
            self._log_line(
                f"{self._name} cannot show {kind.__name__.lower()}s: it does not get {name!r} and others"
            )
        return False

    def _put(self, item: _Item) -> None:
        self._report()
        if self._off:
            self._missing[item.kind] += 1
        elif not self._logger.background:
            self._write(item)
            self._report()
        elif not self._reserve(item.nbytes):
            self._missing[item.kind] += 1
        else:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="logger", daemon=True)
                self._thread.start()
            try:
                self._items.put_nowait(item)
            except queue.Full:
                self._missing[item.kind] += 1
                self._release(item.nbytes)

    def _reserve(self, nbytes: int) -> bool:
        """Count bytes that are to wait; False where they are too many beside those that wait."""
        if not nbytes:
            return True
        with self._lock:
            fits = not self._waiting_bytes or self._waiting_bytes + nbytes <= MOST_BYTES
            self._waiting_bytes += nbytes * fits
        return fits

    def _release(self, nbytes: int) -> None:
        if nbytes:
            with self._lock:
                self._waiting_bytes -= nbytes

    def flush(self, seconds: float) -> bool:
        """Wait until the logger has everything. Whether it has.

        Args:
            seconds: The most to wait.
        """
        if self._thread is None:
            return True
        reached = threading.Event()
        try:
            self._items.put(reached, timeout=seconds)
        except queue.Full:
            return False
        found = reached.wait(seconds)
        self._report()
        return found

    def close(self, seconds: float) -> None:
        """Flush, end the thread, and report what is missing. A row may be put again later.

        Args:
            seconds: The most to wait; a thread that a logger holds longer is left to end by itself.
        """
        if self._thread is not None and self.flush(seconds):
            self._items.put(_END)
            self._thread.join()
        elif self._thread is not None:
            self._off = self._left = True
            waiting = [item for item in list(self._items.queue) if isinstance(item, _Item)]
            self._missing.update(item.kind for item in waiting)
            if self._writing is not None:
                self._missing[self._writing.kind] += 1
            self._log_line(f"warning: {self._name} still writes after {seconds:g} s and is not waited for")
        self._thread = None
        self._report()
        if self._missing:
            missing = " and ".join(
                f"{count} {kind}{'s' * (count > 1)}" for kind, count in self._missing.items()
            )
            self._log_line(f"warning: {self._name} did not get {missing}")
            self._missing.clear()

    def _run(self) -> None:
        while not self._left and (item := self._items.get()) is not _END:
            if isinstance(item, threading.Event):
                item.set()
            elif self._off:
                self._missing[item.kind] += 1
            else:
                self._write(item)
                self._release(item.nbytes)

    def _write(self, item: _Item) -> None:
        self._writing = item
        try:
            item.write()
            self._failures = 0
        except Exception as error:
            self._failures += 1
            self._missing[item.kind] += 1
            if self._first_error is None:
                article = "an" if item.kind == "image" else "a"
                self._first_error = f"{article} {item.kind}", f"{type(error).__name__}: {error}"
            if self._logger.background and self._failures >= MOST_FAILURES:
                self._off = True
        self._writing = None

    def _report(self) -> None:
        if self._first_error is not None and not self._reported:
            self._reported = True
            what, error = self._first_error
            self._log_line(f"warning: {self._name} could not write {what}, and training continues: {error}")
        if self._failures >= MOST_FAILURES and self._off and not self._reported_off:
            self._reported_off = True
            self._log_line(
                f"warning: {self._name} failed {MOST_FAILURES} times in a row: it is switched off"
            )
