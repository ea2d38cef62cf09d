"""A command on a pseudo-terminal, as a user at a keyboard has it."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from .environment import clean_environment

SECONDS = 90


class Terminal:
    """A paceline command, and what it has printed.

    Args:
        folder: Where it runs.
        arguments: The command line.
        variables: Further variables of its environment.

    Attributes:
        printed: All of it so far.
    """

    def __init__(self, folder: Path, *arguments: str, **variables: str) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "paceline", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env=clean_environment() | {"CUDA_VISIBLE_DEVICES": "", **variables},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self.printed = ""
        self._seen = 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(10)
        os.close(self._master)

    def expect(self, text: str) -> None:
        """Wait until it prints a text, after what was expected before."""
        deadline = time.monotonic() + SECONDS
        while text not in self.printed[self._seen :]:
            assert time.monotonic() < deadline, f"no {text!r} in {self.printed[self._seen :]!r}"
            if not self._read(0.5) and self._process.poll() is not None:
                raise AssertionError(f"it ended without {text!r}:\n{self.printed}")
        self._seen = self.printed.index(text, self._seen) + len(text)

    def answer(self, question: str, answer: str) -> None:
        """Wait for a question, and type an answer."""
        self.expect(question)
        self.expect(": ")
        os.write(self._master, (answer + "\n").encode())

    def type(self, keys: str) -> None:
        """Press these keys."""
        os.write(self._master, keys.encode())

    def interrupt(self, question: str, text: str) -> None:
        """Wait for a question, and press Ctrl-C until a text is printed.

        Python's readline misses one that arrives at the instant at which it begins to wait.
        """
        self.expect(question)
        self.expect(": ")
        self.press_until("\x03", text)

    def press_until(self, key: str, text: str) -> None:
        """Press a key every three seconds until a text is printed after what was expected before."""
        deadline = time.monotonic() + SECONDS
        while text not in self.printed[self._seen :]:
            assert time.monotonic() < deadline, self.printed
            self.type(key)
            pressed = time.monotonic()
            while text not in self.printed[self._seen :] and time.monotonic() < pressed + 3:
                self._read(0.2)

    def end(self) -> int:
        """Read to the end; the exit code."""
        deadline = time.monotonic() + SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            self._read(0.2)
        while self._read(0.2):
            pass
        return self._process.wait(1)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        with contextlib.suppress(OSError):  # the other end is closed
            data = os.read(self._master, 65536)
            self.printed += data.decode(errors="replace").replace("\r\n", "\n")
            return bool(data)
        return False


def _take_terminal() -> None:
    """Make standard input the terminal of the new session, so that Ctrl-C reaches it."""
    import fcntl
    import signal
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored by what is started in the background
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
