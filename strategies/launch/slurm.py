"""The job of SLURM that a process belongs to, and how it returns to the queue after an orderly stop.

Sources: the manual pages of sbatch (``--signal``, ``--requeue``, SLURM_RESTART_COUNT) and of scontrol
(``requeue``, ``show job``).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REQUEUE_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""What a batch system is asked to send before the time limit: always a wish for another start."""
SIGNALS = (*REQUEUE_SIGNALS, signal.SIGTERM)
"""All that it sends."""
_SECONDS = 60  # for an answer of a controller that is busy


@dataclass(frozen=True)
class SlurmJob:
    """A job of SLURM; of an array, one of its tasks.

    Args:
        id: Its number; ``<array>_<task>`` of a task.
        restarts: How often it was requeued before this start.

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

    @property
    def may_have_run(self) -> bool:
        """Whether it was requeued before."""
        return self.restarts > 0

    @property
    def has_programs(self) -> bool:
        """A script may train with several, in steps."""
        return True

    @property
    def restart(self) -> str:
        """Which start of the job this is, for the user; "" for the first."""
        return f"SLURM job {self.id} was requeued: start {self.restarts + 1}" if self.restarts else ""

    def place(self, folder: Path) -> Path:
        """Where runs are: the job begins in the folder of its script each time."""
        return folder

    def check_world(self, size: int) -> None:
        """Nothing: a job may have any ranks."""

    def requeue_after(self, number: int, has_trained: bool) -> str:
        """Requeue the job, if that is what the signal meant that stopped it.

        SIGUSR1 and SIGUSR2 mean that, and SIGTERM of a job that is preempted or has reached its time
        limit, as SLURM says. Nothing is done for a job that was cancelled, and for one in which each start
        is too short. To be called by one process of the job, after all ranks have saved, because SLURM
        ends the job at once. Under submitit its own handler does this.

        Args:
            number: The signal that stopped the run.
            has_trained: Whether a step was done since this start.

        Returns:
            What became of it, as a line for the user; "" where the signal did not mean it.
        """
        if number not in SIGNALS or (number != signal.SIGTERM and "SUBMITIT_EXECUTOR" in os.environ):
            return ""
        shown = self._shown()
        must_leave = shown.get("PreemptTime", "None") != "None" or shown.get("Reason") == "TimeLimit"
        is_cancelled = shown.get("JobState") in ("COMPLETING", "CANCELLED") and not must_leave
        if is_cancelled or (number == signal.SIGTERM and not must_leave):
            return ""
        if self.restarts and not has_trained and not must_leave:
            return (
                f"warning: SLURM job {self.id} is not requeued: no step was done between its start and "
                f"{signal.Signals(number).name}, as after the last requeue; give it a longer time limit"
            )
        done = _run("scontrol", "requeue", self.id)
        if done.returncode == 0:
            return f"SLURM job {self.id} is requeued; it resumes in this run folder"
        return (
            f"warning: SLURM did not requeue job {self.id}: {done.stdout.strip()}; submit the script "
            "again, with fit(..., resume='auto')"
        )

    def _shown(self) -> dict[str, str]:
        """What SLURM says of the job: its state and reason, and when it was preempted."""
        text = _run("scontrol", "show", "job", self.id).stdout
        return dict(re.findall(r"\b(JobState|Reason|PreemptTime)=(\S+)", text))


def current_job() -> SlurmJob | None:
    """The job that this process belongs to; None outside of SLURM."""
    job, restarts = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_RESTART_COUNT", "")
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    if array and task:  # the number of one task is the array's, and would mean all of them
        job = f"{array}_{task}"
    return SlurmJob(job, int(restarts) if restarts.isdecimal() else 0) if job else None


def ignore_signals() -> dict[int, Any]:
    """Ignore what SLURM sends from now on: several signals while ranks save, and the end of a requeued job.

    Returns:
        The handlers that were there; {} outside of SLURM and of the main thread.
    """
    if current_job() is None or threading.current_thread() is not threading.main_thread():
        return {}
    return {int(number): signal.signal(number, signal.SIG_IGN) for number in SIGNALS}


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
