"""Where the runs are that ``Trainer(run_dir=...)`` names."""

from __future__ import annotations

from pathlib import Path

from ...strategies.launch.job import find_job


def runs_folder(given: Path | None) -> Path | None:
    """The folder as the job of this process has it, which must find it at its next start.

    Args:
        given: An absolute path; None for none.

    Raises:
        PacelineError: for one that it would not find.
    """
    job = find_job()
    return given if given is None or job is None else job.place(given)
