"""The run that a job had under way before it was started again."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...strategies.launch.job import find_job
from ..checkpoint.remote_run import RemoteRun
from ..utils.secrets import masked_command
from .numbering import runs_of_name

KEY = "job"
"""Of ``env.json``."""


def identity(fit: int, config: dict[str, Any]) -> dict[str, Any]:
    """What tells the runs of this job's programs apart, and from those of other jobs: for env.json.

    Args:
        fit: Which ``fit`` of the script it is, from 1.
        config: The content of config.yaml: programs of one job may differ in their variables alone.

    Returns:
        A dict with ``job``; {} for a process that belongs to none.
    """
    job = find_job()
    if job is None:
        return {}
    about: dict[str, Any] = {"name": job.name, "fit": fit}
    if job.has_programs:
        about |= {
            "step": os.environ.get("SLURM_STEP_ID"),
            "command": masked_command(sys.argv),
            "config": hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest(),
        }
    return {KEY: about}


def requeued_runs(runs: Path, fit: int, config: dict[str, Any]) -> Iterator[Path]:
    """The runs of the same job, program and ``fit``, newest first; none at the job's first start.

    Args:
        runs: Where the runs of this name are.
        fit: Which ``fit`` of the script this is, from 1.
        config: The content that config.yaml has.
    """
    job = find_job()
    if job is None or not job.may_have_run:
        return
    wanted = identity(fit, config)[KEY]
    for folder in runs_of_name(runs):
        remote = RemoteRun.of(folder)
        if remote is not None:
            remote.pull()
        with suppress(OSError, ValueError):
            environment = json.loads((folder / "env.json").read_text(encoding="utf-8"))
            if environment.get(KEY) == wanted:
                yield folder
