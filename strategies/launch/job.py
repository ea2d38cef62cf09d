"""The job of a cluster's scheduler that a process belongs to: SLURM's, or an experiment of Ray Train."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ...common.ray_experiment import current_experiment
from . import slurm

FIRST_PORT, PORTS = 10000, 19000
"""Where ranks of a job meet: below the ports that a system gives to connections (from 32768 on Linux)."""


class Job(Protocol):
    """What starts a training again after this process, which then resumes the job's run."""

    @property
    def name(self) -> str:
        """What names the job in files, the same after each restart."""

    @property
    def may_have_run(self) -> bool:
        """Whether an earlier start may have trained."""

    @property
    def has_programs(self) -> bool:
        """Whether several programs may train in it."""

    @property
    def restart(self) -> str:
        """This start, for the user, where it is known not to be the first; else ""."""

    def place(self, folder: Path) -> Path:
        """Where a folder of runs is that the user named.

        Args:
            folder: An absolute path.

        Raises:
            PacelineError: where the job's next start would not find it.
        """

    def check_world(self, size: int) -> None:
        """See that the ranks are those of the job, where it has started them itself.

        Args:
            size: Of the world that this process sees.

        Raises:
            PacelineError: where they are not.
        """

    def requeue_after(self, number: int, has_trained: bool) -> str:
        """Have the job started again, if that is what the signal meant that stopped it.

        Args:
            number: The signal.
            has_trained: Whether a step was done since this start.

        Returns:
            What became of it, as a line for the user; "" for nothing.
        """


def find_job() -> Job | None:
    """The job that this process belongs to; None for none. Ray's workers may be in a job of SLURM too.

    Example:
        >>> find_job() is None
        True
    """
    return current_experiment() or slurm.current_job()
