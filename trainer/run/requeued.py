"""The run that a job of a batch system had under way before it was put back into the queue."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...strategies.launch.slurm import current_job
from ..utils.secrets import masked_command
from .directory import numbered


def identity(fit: int) -> dict[str, Any]:
    """What tells a run of this process from those of other jobs: for env.json.

    Args:
        fit: Which ``fit`` of the script it is, from 1.
    """
    job = current_job()
    return {"fit": fit} | ({"job": job.name} if job is not None else {})


def requeued_run(runs: Path, fit: int) -> Path | None:
    """The newest run of the same job, command and ``fit``; None where this is the job's first start.

    Args:
        runs: Where the runs of this name are.
        fit: Which ``fit`` of the script this is, from 1.
    """
    job = current_job()
    if job is None or not job.restarts:
        return None
    wanted = identity(fit) | {"command": masked_command(sys.argv)}
    for _, folder in reversed(numbered(runs)):
        with suppress(OSError, ValueError):
            environment = json.loads((folder / "env.json").read_text(encoding="utf-8"))
            if all(environment.get(name) == value for name, value in wanted.items()):
                return folder
    return None
