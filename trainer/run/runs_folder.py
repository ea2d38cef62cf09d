"""Where the runs are that ``Trainer(run_dir=...)`` names."""

from __future__ import annotations

import os
from pathlib import Path

from ...common.remote_paths import is_remote
from ...strategies.launch.job import find_job
from ..utils.paths import as_path


def runs_folder(given: str | os.PathLike[str] | None) -> Path | None:
    """The folder on this machine: of an address its copy, of a path where the job of this process has it.

    Args:
        given: An absolute path or an address; None for none.

    Raises:
        PacelineError: for a path that the job's next start would not find, and a wrong address.
    """
    if given is None:
        return None
    path, job = as_path(given, "run_dir", remote=True), find_job()
    return path if job is None or is_remote(given) else job.place(path)
