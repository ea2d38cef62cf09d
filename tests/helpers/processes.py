"""Runs commands, for tests of how they are launched and ended, until no process of them is left."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from .environment import clean_environment
from .ranks import Job

MARK = "PACELINE_TEST_MARK"
SECONDS = 400  # what any job may take on a machine that is busy
GONE = 60  # what a job that has ended leaves may take on a machine that is busy


class Outcome:
    """What became of a command.

    Attributes:
        code: Its exit code; None where it had to be ended.
        left: Command lines of what outlived it.
    """

    def __init__(self, folder: Path, command: list[Any], env: dict[str, str]) -> None:
        self.folder, self._mark = folder, uuid.uuid4().hex
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            process = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                env=clean_environment() | {MARK: self._mark} | env,
                start_new_session=True,
            )
        try:
            self.code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.code = None
        deadline = time.monotonic() + (GONE if self.code is not None else 0)
        while (found := self._alive()) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.left = list(found.values())
        for one in found:
            with contextlib.suppress(psutil.Error):
                one.kill()
        process.wait(10)

    def _alive(self) -> dict[psutil.Process, str]:
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                ours = process.environ().get(MARK) == self._mark
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found[process] = " ".join(process.cmdline())
        return found

    def notes(self, what: str, **values: Any) -> list[dict[str, Any]]:
        """What the job noted of that kind, with these values."""
        return notes(self.folder, what, **values)

    def errors(self) -> list[str]:
        """The lines of its standard error."""
        return (self.folder / "err").read_text().splitlines()

    def printed(self) -> str:
        """All it printed, for a test that fails."""
        out, err = (self.folder / "out").read_text(), (self.folder / "err").read_text()
        return f"exit code {self.code}\n{out[-3000:]}\n{err[-6000:]}"


class ForkedOutcome(Outcome):
    """What became of a script whose launcher and ranks were forks: an interpreter takes 4 CPU seconds."""

    def __init__(self, folder: Path, job: Path, options: dict[str, Any], env: dict[str, str]) -> None:
        self.folder = folder
        settings = {"seconds": SECONDS, "environment": env, "launches": True}
        with Job(job, 1, json.dumps(options), folder=folder, **settings) as running:
            ended = running.wait()
        (self.code,), self.left = ended.codes, ended.left
        (folder / "out").write_text(ended.stdout)
        (folder / "err").write_text(ended.stderr)


def notes(folder: Path, what: str, **values: Any) -> list[dict[str, Any]]:
    """The notes of that kind, with these values, of a job in this folder; whole lines only."""
    path = folder / "notes"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    wanted = {"what": what} | values
    return [one for one in found if all(one.get(key) == value for key, value in wanted.items())]


def run(
    job: Path,
    folder: Path,
    options: dict[str, Any],
    through: tuple[str, ...] = (),
    *,
    forked: bool = False,
    **env: str,
) -> Outcome:
    """Run a job with these options, to its end.

    Args:
        through: What starts it: modules with their arguments; () for the script itself.
        forked: The script, and the ranks that its launcher starts, are forks: for tests of what a launcher
            does, and not of how it comes to do it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if forked:
        return ForkedOutcome(folder, job, options, env)
    return Outcome(folder, [sys.executable, *through, job, json.dumps(options)], env)


def side_by_side(folder: Path, work: dict[str, Callable[[Path], Any]], at_once: int) -> dict[str, Any]:
    """Do all of it, so many at once, each in a folder of its name: most of what they take is waiting."""
    with ThreadPoolExecutor(at_once) as pool:
        found = {name: pool.submit(one, folder / name.replace(" ", "-")) for name, one in work.items()}
        return {name: one.result() for name, one in found.items()}
