"""The run that a job had under way before it was started again."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...strategies.launch.job import find_job
from ..checkpoint.files.remote_run import RemoteRun
from ..utils.secrets import masked_command
from .directory import read_environment
from .numbering import runs_of_name

KEY = "job"
"""Of ``env.json``."""


def identity(fit: int, config: dict[str, Any], resume: Any = None) -> dict[str, Any]:
    """What tells the runs of this job's programs apart, and from those of other jobs: for env.json.

    Args:
        fit: Which ``fit`` of the script it is, from 1.
        config: The content of config.yaml: programs of one job may differ in their variables alone.
        resume: What the user gave ``fit`` to resume from.

    Returns:
        A dict with ``job``; {} for a process that belongs to none.
    """
    job = find_job()
    if job is None:
        return {}
    about: dict[str, Any] = {"name": job.name, "fit": fit}
    if job.has_programs:
        step, command = os.environ.get("SLURM_STEP_ID"), masked_command(sys.argv)
        return {KEY: about | {"step": step, "command": command, "config": _hash(config)}}
    # A later start of it may be another training, with the script changed.
    return {
        KEY: about | {"module": _hash(config["module"]), "resume": None if resume is None else str(resume)}
    }


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def requeued_runs(runs: Path, wanted: dict[str, Any]) -> Iterator[Path]:
    """The runs of the same job, program and ``fit``, newest first; none at the job's first start.

    Args:
        runs: Where the runs of this name are.
        wanted: What ``identity`` returned.
    """
    job = find_job()
    if job is None or not job.may_have_run:
        return
    for folder in runs_of_name(runs):
        remote = RemoteRun.of(folder)
        if remote is not None:
            remote.pull(to_write=False)
        if read_environment(folder).get(KEY) == wanted[KEY]:
            yield folder
