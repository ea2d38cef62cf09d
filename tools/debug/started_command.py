"""How a run was started, for starting it again."""

from __future__ import annotations

import os
import platform
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import PacelineError
from ...trainer.run.directory import read_environment
from ...trainer.utils.secrets import MASK

_LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "PACELINE_JOB")


class Command(NamedTuple):
    """How a run was started.

    Attributes:
        program: The arguments of the interpreter.
        folder: In which folder.
        fit: Which ``fit`` of the script the run was, from 1.
        doubt: Why it is not to be started unseen, in words; "": this user wrote it, on this host.

    Example:
        >>> str(Command(["train.py", "--name", "a b"], "/home/me", 1))
        "cd /home/me && python train.py --name 'a b'"
    """

    program: list[str]
    folder: str
    fit: int
    doubt: str = ""

    def __str__(self) -> str:
        shown = f"cd {shlex.quote(self.folder)} && python {shlex.join(self.program)}"
        # A terminal would follow control characters, and show another command.
        return "".join(one if one.isprintable() else repr(one)[1:-1] for one in shown)


def started_by(run: Path, step: int) -> Command:
    """The command that started a run, for starting it again at a step.

    Raises:
        PacelineError: for a folder that is no run's, and for a command that cannot be started again.
    """
    environment = read_environment(run)
    command, folder, fit = (environment.get(name) for name in ("program", "folder", "fit"))
    words = isinstance(command, list) and all(isinstance(word, str) for word in command)
    if not (words and isinstance(folder, str) and type(fit) is int):
        raise PacelineError(
            "there is no run in this folder that can be replayed",
            code="run-not-found",
            where=str(run),
            fix="give the folder of a run, runs/<name>/<n>",
        )
    if not command:
        raise PacelineError(
            "this run was started in a notebook or at a prompt, so its command is not known",
            code="replay-not-possible",
            where=str(run),
            fix=f"paceline.tools.replay(trainer, module, dataloader, step={step}) there",
        )
    if any(MASK in word for word in command):
        raise PacelineError(
            "the run's command had a secret, which is not kept, so it cannot be started again",
            code="replay-not-possible",
            where=str(run),
            got=" ".join(command),
            fix=f"paceline.tools.replay(trainer, module, loader, {step=}, run={str(run)!r}) in a script",
        )
    doubt = "its code is in the command itself" if _has_code(command) else doubt_about(run, environment)
    return Command(command, folder, fit, doubt)


def doubt_about(run: Path, environment: dict[str, Any]) -> str:
    """Why a run's files may be another's than this user's on this host, in words; "" where they are not.

    The owner of the files is the system's word; the host and the user that env.json names are the file's.

    Args:
        run: The run's folder.
        environment: The content of its env.json.
    """
    if not hasattr(os, "getuid"):  # Windows, whose files have no number of a user
        mine = None
    else:
        mine = os.getuid()
        for file in (run, run / "env.json", run / "config.yaml"):
            owner = file.stat().st_uid if file.exists() else mine
            if owner != mine:
                return f"user {owner} wrote it, and you are user {mine}"
    host, user = environment.get("host"), environment.get("user", mine)
    if user != mine:
        return f"user {user} wrote it, and you are user {mine}"
    return "" if host == platform.node() else f"it was written on the host {host!r}, and not on this one"


def _has_code(program: list[str]) -> bool:
    """Whether the interpreter's options end in ``-c``, alone or after others: ``-Ic``."""
    takes_value = False
    for word in program:
        if takes_value:
            takes_value = False
        elif not word.startswith("-") or word.startswith("--"):
            return False
        else:
            end = next((n for n, letter in enumerate(word) if letter in "cmWX"), None)
            if end is not None and word[end] in "cm":
                return word[end] == "c"
            takes_value = end is not None and end == len(word) - 1
    return False


def outside_a_launch() -> dict[str, str]:
    """This process's environment, without what makes it a rank of a job."""
    return {name: value for name, value in os.environ.items() if name not in _LAUNCHED}
