"""How a run was started, for starting it again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from ...errors import PacelineError
from ..run.directory import read_environment
from ..utils.secrets import MASK

_LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "PACELINE_JOB")


class Command(NamedTuple):
    """How a run was started.

    Attributes:
        program: The arguments of the interpreter.
        folder: In which folder.
        fit: Which ``fit`` of the script the run was, from 1.
    """

    program: list[str]
    folder: str
    fit: int


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
            where=str(run),
            fix="give the folder of a run, runs/<name>/<n>",
        )
    if not command:
        raise PacelineError(
            "this run was started in a notebook or at a prompt, so its command is not known",
            where=str(run),
            fix=f"trainer.replay(module, dataloader, step={step}) there",
        )
    if any(MASK in word for word in command):
        raise PacelineError(
            "the run's command had a secret, which is not kept, so it cannot be started again",
            where=str(run),
            got=" ".join(command),
            fix=f"trainer.replay(module, dataloader, step={step}, run={str(run)!r}) in a script",
        )
    return Command(command, folder, fit)


def outside_a_launch() -> dict[str, str]:
    """This process's environment, without what makes it a rank of a job."""
    return {name: value for name, value in os.environ.items() if name not in _LAUNCHED}
