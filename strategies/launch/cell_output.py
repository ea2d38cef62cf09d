"""What rank 0 prints and displays, shown in the cell by the notebook's own process."""

from __future__ import annotations

import codecs
import io
import os
import sys
import threading
from collections.abc import Callable, Iterable
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

_STREAMS = {"stdout": 1, "stderr": 2}
_BYTES = 65536


class CellOutput:
    """Pipes from rank 0 to the process that runs the cell; they are made before the fork.

    A notebook's own streams and displays belong to threads that a fork does not have.
    """

    def __init__(self) -> None:
        self._messages, self._sender = Pipe(duplex=False)
        self._pipes = {name: os.pipe() for name in _STREAMS}
        self._open: dict[Any, Any] = {self._messages: None}
        for name, (reader, _) in self._pipes.items():
            os.set_blocking(reader, False)
            self._open[reader] = (name, codecs.getincrementaldecoder("utf-8")("replace"))

    # -- in the ranks --------------------------------------------------------------------------

    def send_from_here(self) -> None:
        """Send what this process prints and displays from now on, and what its children print."""
        send = _Sender(self._sender)
        for name, number in _STREAMS.items():
            is_terminal = getattr(sys, name).isatty()
            setattr(sys, name, _Stream(send, name, is_terminal))
            os.dup2(self._pipes[name][1], number)
        shell = _shell()
        if shell is not None:
            shell.display_pub = _publisher(send)

    def close_writers(self) -> None:
        """This process writes nothing into the pipes."""
        self._sender.close()
        for _, writer in self._pipes.values():
            os.close(writer)

    # -- in the process that runs the cell -----------------------------------------------------

    def show_while_waiting(self, sentinels: Iterable[int]) -> None:
        """Show what comes, until one of ``sentinels`` is ready."""
        waited_for = set(sentinels)
        while True:
            ready = wait([*self._open, *waited_for])
            self._show(ready)
            if not waited_for.isdisjoint(ready):
                return

    def show_rest(self) -> None:
        """Show what has been written and not been read."""
        while ready := wait([*self._open], timeout=0):
            self._show(ready)

    def _show(self, ready: Iterable[Any]) -> None:
        for one in ready:
            if one is self._messages:
                self._show_message()
            elif one in self._open:
                self._show_bytes(one)

    def _show_message(self) -> None:
        try:
            kind, *content = self._messages.recv()
        except (EOFError, OSError):
            del self._open[self._messages]
            return
        if kind in _STREAMS:
            _print(kind, *content)
            return
        shell = _shell()
        if shell is not None:
            getattr(shell.display_pub, kind)(*content[0], **content[1])

    def _show_bytes(self, reader: int) -> None:
        name, decoder = self._open[reader]
        found = os.read(reader, _BYTES)
        _print(name, decoder.decode(found))
        if not found:
            del self._open[reader]

    def close(self) -> None:
        """Close what this process reads."""
        self._messages.close()
        for reader, _ in self._pipes.values():
            os.close(reader)


def _print(name: str, text: str) -> None:
    stream = getattr(sys, name)
    stream.write(text)
    stream.flush()


def _shell() -> Any:
    ipython: Any = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


class _Sender:
    """Sends from one process, from any of its threads."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection, self._lock, self._process = connection, threading.RLock(), os.getpid()

    def is_here(self) -> bool:
        """Whether this is the process that it sends from, and not a child of it."""
        return os.getpid() == self._process

    def __call__(self, *message: Any) -> None:
        with self._lock:
            self._connection.send(message)


class _Stream(io.TextIOBase):
    """A text stream that sends line by line; in a child of this process it writes to the descriptor."""

    def __init__(self, send: _Sender, name: str, is_terminal: bool) -> None:
        self._send, self._name, self._is_terminal = send, name, is_terminal
        self._kept = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def fileno(self) -> int:
        return _STREAMS[self._name]

    def isatty(self) -> bool:
        return self._is_terminal

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not self._send.is_here():
            os.write(self.fileno(), text.encode(errors="replace"))
            return len(text)
        self._kept += text
        if "\n" in text or "\r" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        text, self._kept = self._kept, ""
        if text and self._send.is_here():
            self._send(self._name, text)


def _publisher(send: Callable[..., None]) -> Any:
    """A publisher for IPython that sends each display."""
    from IPython.core.displaypub import DisplayPublisher

    class Sent(DisplayPublisher):  # type: ignore[misc]
        def publish(self, *content: Any, **options: Any) -> None:
            send("publish", content, options)

        def clear_output(self, *content: Any, **options: Any) -> None:
            send("clear_output", content, options)

    return Sent()
