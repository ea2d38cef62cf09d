"""The run that a job of a batch system had under way before it was requeued."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...strategies.launch.slurm import current_job
from ..utils.secrets import masked_command
from .directory import numbered

KEY = "batch_job"
"""Of ``env.json``."""


def identity(fit: int, config: dict[str, Any]) -> dict[str, Any]:
    """What tells the runs of this job's programs apart, and from those of other jobs: for env.json.

    Args:
        fit: Which ``fit`` of the script it is, from 1.
        config: The content of config.yaml: programs of one job may differ in their variables alone.

    Returns:
        A dict with ``batch_job``; {} outside of a batch system.
    """
    job = current_job()
    if job is None:
        return {}
    about = {
        "name": job.name,
        "step": os.environ.get("SLURM_STEP_ID"),
        "command": masked_command(sys.argv),
        "fit": fit,
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
    job = current_job()
    if job is None or not job.restarts:
        return
    wanted = identity(fit, config)[KEY]
    for _, folder in reversed(numbered(runs)):
        with suppress(OSError, ValueError):
            environment = json.loads((folder / "env.json").read_text(encoding="utf-8"))
            if environment.get(KEY) == wanted:
                yield folder
