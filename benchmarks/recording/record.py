"""Draw the terminal recording of the README, an SVG that moves.

python benchmarks/recording/record.py docs/images/resume.svg      (needs pyte)

Two ranks train; the same program is killed on the way and started again; ``paceline diff`` compares both.
All that is shown was printed by the commands. Pauses longer than 0.3 seconds are shown as 0.3 seconds.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from html import escape
from pathlib import Path

import pyte

COLUMNS, ROWS = 92, 22
WIDTH, HEIGHT, MARGIN = 8.4, 18, 14  # of a character, in pixels
LONGEST_PAUSE, END = 0.3, 3.0  # seconds
EVERY = 0.1  # seconds between two pictures, at least
LABEL = "Two ranks are killed and resumed, and every step is the same as in a run that was not"
SCRIPT = Path(__file__).with_name("train.py")
KILLED_AFTER = re.compile(rb"2[5-9][0-9]/400")
"""What the progress bar says when the run is killed."""


class Recording:
    """Pictures of a terminal, each with the second from which it is shown."""

    def __init__(self) -> None:
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.pictures: list[tuple[float, list[str]]] = []
        self.second = 0.0
        self._since = EVERY

    def show(self, data: bytes, pause: float) -> None:
        """Take what was printed ``pause`` seconds after what came before."""
        pause = min(pause, LONGEST_PAUSE)
        self.second, self._since = self.second + pause, self._since + pause
        self.stream.feed(data)
        if self._since >= EVERY:
            self.keep()

    def keep(self) -> None:
        lines = [line.rstrip() for line in self.screen.display]
        if not self.pictures or self.pictures[-1][1] != lines:
            self.pictures.append((self.second, lines))
            self._since = 0.0

    def type(self, command: str) -> None:
        """Show how a command is typed."""
        self.show(b"$ ", 0.3)
        for letter in command:
            self.show(letter.encode(), 0.02)
        self.show(b"\r\n", 0.3)
        self.keep()

    def run(self, command: str, folder: Path, kill_at: re.Pattern[bytes] | None = None) -> None:
        """Run a command on its own terminal, and kill it with its ranks where it prints ``kill_at``."""
        process, terminal = pty.fork()
        if process == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            os.chdir(folder)
            os.execvp("bash", ["bash", "-c", f"exec {command}"])
        printed, before = b"", time.monotonic()
        while True:
            select.select([terminal], [], [], 60)
            try:
                data = os.read(terminal, 65536)
            except OSError:  # its end
                break
            now = time.monotonic()
            self.show(data, now - before)
            printed, before = (printed + data)[-500:], now
            if kill_at is not None and kill_at.search(printed):
                os.killpg(process, signal.SIGKILL)
                self.show(b"\r\nKilled\r\n", 0.1)
                break
        os.waitpid(process, 0)
        os.close(terminal)
        self.keep()


def draw(pictures: list[tuple[float, list[str]]]) -> str:
    """An SVG whose pictures lie beside each other and are shown one after another, again and again."""
    width, height = COLUMNS * WIDTH + 2 * MARGIN, ROWS * HEIGHT + 2 * MARGIN
    seconds = pictures[-1][0] + END
    texts: dict[str, int] = {}
    frames, moves = [], []
    for number, (second, lines) in enumerate(pictures):
        uses = []
        for row, line in enumerate(lines):
            if line:
                text = texts.setdefault(line, len(texts))
                y = MARGIN + (row + 0.75) * HEIGHT
                uses.append(f'<use href="#t{text}" x="{number * width + MARGIN:g}" y="{y:g}"/>')
        frames.append("".join(uses))
        moves.append(f"{100 * second / seconds:.3f}%{{transform:translateX({-number * width:g}px)}}")
    defined = "".join(
        f'<text id="t{number}" class="{"p" if line.startswith("$ ") else "o"}">{escape(line)}</text>'
        for line, number in texts.items()
    )
    last = -(len(pictures) - 1) * width
    style = (
        "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#e6edf3;white-space:pre}"
        f".p{{fill:#7ee787}}#f{{animation:m {seconds:.2f}s step-end infinite}}"
        f"@keyframes m{{{''.join(moves)}100%{{transform:translateX({last:g}px)}}}}"
        f"@media(prefers-reduced-motion){{#f{{animation:none;transform:translateX({last:g}px)}}}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{LABEL}"><style>{style}</style><defs>{defined}</defs>'
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/><g id="f">{"".join(frames)}</g></svg>\n'
    )


def main() -> None:
    recording = Recording()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        shutil.copy(SCRIPT, folder)
        for command, kill_at in (
            ("python train.py whole", None),
            ("python train.py killed", KILLED_AFTER),
            ("python train.py killed", None),
            ("paceline diff runs/whole/1 runs/killed/1", None),
        ):
            recording.type(command)
            recording.run(command, folder, kill_at)
        same = subprocess.run(
            ["paceline", "diff", "runs/whole/1", "runs/killed/1"], cwd=folder, check=False
        )
        assert same.returncode == 0, "the runs differ"
    recording.show(b"$ ", 0.3)
    recording.keep()
    Path(sys.argv[1]).write_text(draw(recording.pictures))
    print(f"{len(recording.pictures)} pictures, {recording.second + END:.0f} s")


if __name__ == "__main__":
    main()
