"""The job of SLURM that a process belongs to, and how it returns to the queue after an orderly stop.

Sources: the manual pages of sbatch (``--signal``, ``--requeue``, SLURM_RESTART_COUNT) and of scontrol
(``requeue``, ``show job``).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from dataclasses import dataclass

REQUEUE_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""What a batch system is asked to send before the time limit: always a wish for another start."""
SIGNALS = (*REQUEUE_SIGNALS, signal.SIGTERM)
"""All that it sends."""
_SECONDS = 60  # for an answer of a controller that is busy


@dataclass(frozen=True)
class SlurmJob:
    """A job of SLURM.

    Args:
        id: Its number.
        restarts: How often it was put back into the queue before this start.

    Example:
        >>> SlurmJob("4711", restarts=1).name
        'slurm/4711'
    """

    id: str
    restarts: int = 0

    @property
    def name(self) -> str:
        """What names the job in files, the same after each restart."""
        return f"slurm/{self.id}"

    def requeue_after(self, number: int) -> str:
        """Put the job back into the queue, if that is what the signal meant that stopped it.

        SIGUSR1 and SIGUSR2 always mean that. SIGTERM means it when the job is preempted or has reached its
        time limit, not when it is cancelled: SLURM tells which. To be called by one process of the job,
        after all ranks have saved, because SLURM ends the job at once.

        Args:
            number: The signal that stopped the run.

        Returns:
            What became of it, as a line for the user; "" where the signal did not mean it.
        """
        if number not in SIGNALS:
            return ""
        if number == signal.SIGTERM and not self._ended_by_slurm():
            return ""
        done = _run("scontrol", "requeue", self.id)
        if done.returncode == 0:
            return f"SLURM job {self.id} is back in the queue; it resumes in this run folder"
        return (
            f"warning: SLURM did not put job {self.id} back into the queue: {done.stdout.strip()}; "
            "submit it again with --requeue: the script resumes with fit(..., resume='auto')"
        )

    def _ended_by_slurm(self) -> bool:
        """Whether SLURM sent SIGTERM for its own reasons: a cancelled job is to stay cancelled."""
        found = re.findall(r"\b(JobState|Reason)=(\w+)", _run("scontrol", "show", "job", self.id).stdout)
        shown = dict(found)
        # A preempted job runs on for its grace time. One at its end is "COMPLETING", whatever ended it.
        return shown.get("JobState") in ("RUNNING", "PREEMPTED") or shown.get("Reason") == "TimeLimit"


def current_job() -> SlurmJob | None:
    """The job that this process belongs to; None outside of SLURM."""
    job, restarts = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_RESTART_COUNT", "")
    return SlurmJob(job, int(restarts) if restarts.isdigit() else 0) if job else None


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    """The result of a command, its errors with its output; exit code 127 where it cannot be run."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 127, stdout=str(error))
