"""Runs what a user trains for one step: a script, or what ``paceline fit`` takes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..config.recipe import is_recipe_file
from ..errors import PacelineError, cut
from ..testing.ranks import outside_a_launch
from ..tools.rerun.one_step_trainer import OneStepRequest
from .finding import FAILED, OK, Finding, split_error

_CURE = "run it by itself; the end of its output is below"
_LINES = 14
_GRACE = 3.0  # seconds in which what is asked to end may do so by itself


@dataclass(frozen=True)
class Target:
    """What is to be run.

    Args:
        name: A script's path, or what ``paceline fit`` takes: a recipe's name, say.
        words: What follows it on the command line.
    """

    name: str
    words: tuple[str, ...] = ()

    @property
    def is_script(self) -> bool:
        """Whether Python runs it: a file that is no recipe."""
        return self.name.endswith(".py") and not is_recipe_file(Path(self.name))

    def check(self) -> None:
        """See that it exists.

        Raises:
            PacelineError: for a script that is not.
        """
        if self.name.endswith(".py") and not Path(self.name).is_file():
            raise PacelineError(
                "there is no such script",
                code="file-not-found",
                got=self.name,
                fix="give the path of a Python file",
            )

    def command(self, request: OneStepRequest) -> list[str]:
        """What starts it."""
        if self.is_script:
            return [sys.executable, "-u", self.name, *self.words]
        asked = {
            "devices": request.devices,
            "strategy": request.strategy,
            "accelerator": request.accelerator,
        }
        settings = [f"trainer.{name}={value}" for name, value in asked.items() if value is not None]
        once = ["trainer.fast_dev_run=1", *settings]
        return [sys.executable, "-u", "-m", "paceline", "fit", self.name, *self.words, *once]


def run_target(target: Target, request: OneStepRequest, folder: Path) -> Finding:
    """Run it for one step.

    Args:
        target: What to run.
        request: On what.
        folder: Takes what it prints.
    """
    name, strategy = Path(target.name).name, request.strategy or "its own"
    Path(request.note).unlink(missing_ok=True)
    variables = outside_a_launch() | (request.variables() if target.is_script else {})
    with (folder / "output.txt").open("w+b") as output:
        begun = time.monotonic()
        code = run_command(target.command(request), variables, output, request.seconds * 2.0)
        output.seek(0)
        lines = [one for one in output.read().decode(errors="replace").splitlines() if one.strip()]
    details = ("its output ends with:", *(cut(f"  {line}", 200) for line in lines[-_LINES:]))
    if code is None:
        text = f"it did not end within {2 * request.seconds} s"
        return Finding(name, FAILED, text, _CURE, strategy, details)
    if code:
        what, fix = split_error("\n".join(last_error(lines)))
        text = f"exit code {code}: {cut(what, 250)}"
        return Finding(name, FAILED, text, fix or _CURE, strategy, details)
    seconds = f"in {time.monotonic() - begun:.0f} s"
    if not target.is_script:
        return Finding(name, OK, f"one step {seconds}", strategy=strategy)
    return _judge_note(
        Path(request.note), request.devices, Finding(name, OK, seconds, "", strategy, details)
    )


def _judge_note(note: Path, devices: int, found: Finding) -> Finding:
    """Whether a script that ended well has trained, and on the ranks that were asked for."""
    name, strategy = found.check, found.strategy
    if not note.exists():
        cure = "call Trainer.fit with `from paceline import Trainer`; a notebook or a test cannot be run so"
        text = "the script ended without a fit"
        return Finding(name, FAILED, text, cure, strategy, found.details)
    values = json.loads(note.read_text())
    world, steps = values["world_size"], values["steps"]
    text = f"{steps} step{'s' * (steps != 1)} under {values['strategy']} on {world} rank{'s' * (world > 1)}"
    if steps < 1 or (world != devices and world > 1):
        cure = "the data has no batch, or the Trainer has another number of devices: see the output"
        return Finding(name, FAILED, f"{text}, and {devices} are asked for", cure, strategy, found.details)
    return Finding(name, OK, f"{text} {found.found}", strategy=strategy)


def last_error(lines: Sequence[str]) -> list[str]:
    """The last error in a program's output: its line, and those of the same message after it."""
    for index in range(len(lines) - 1, -1, -1):
        if not lines[index].startswith(" ") and (
            "Error" in lines[index] or lines[index].startswith("error:")
        ):
            return [lines[index].removeprefix("error: "), *lines[index + 1 :]]
    return [lines[-1] if lines else "it printed nothing"]


def run_command(
    command: list[str], variables: dict[str, str], output: IO[bytes], seconds: float
) -> int | None:
    """The exit code of a command; None where it had to be ended. Nothing of it is left."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=variables,
        start_new_session=True,
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
