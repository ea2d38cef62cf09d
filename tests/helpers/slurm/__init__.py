"""SLURM as its manual pages describe it, on this machine: the programs in ``bin`` and what runs the jobs.

``sbatch`` notes a job, which ``Cluster.run`` starts and restarts, as the daemons of SLURM would. Signals go
to all processes of a job's steps, not to the batch shell; a job that is put back into the queue or
cancelled gets SIGCONT and SIGTERM, and SIGKILL when the seconds of ``KillWait`` have passed. Sites differ
in whether a signal reaches all processes of a step or its tasks alone: ``Job.reaches`` says which. The
hosts of a job are addresses of this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from ..processes import notes
from ..ranks import run_ranks

BIN = Path(__file__).parent / "bin"
KILL_WAIT = 30
_SECONDS = 150


def uninterrupted(script: Path, folder: Path) -> list[float]:
    """The weights that a script notes when it trains on two ranks and nothing interrupts it."""
    run_ranks(script, 2, "{}", folder=folder)
    (done,) = notes(folder, "done")
    weights: list[float] = done["weights"]
    return weights


class Cluster:
    """What ``sbatch`` has noted in a folder, and the jobs that run from there.

    Args:
        folder: Of the jobs' records.
        environment: What the commands and the jobs run in; SLURM's programs are added.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        folder.mkdir()
        path = f"{BIN}:{environment['PATH']}"
        here = {"STAND_IN_SLURM": str(folder), "STAND_IN_KILL_WAIT": str(KILL_WAIT), "PATH": path}
        self.environment = environment | here

    def submit(self, *command: str, cwd: Path) -> Job:
        """Run a command that calls ``sbatch``, and the job that it has submitted."""
        before = set(self.folder.iterdir())
        subprocess.run(command, cwd=cwd, env=self.environment, check=True, timeout=_SECONDS)
        (new,) = set(self.folder.iterdir()) - before
        return self.job(new.name)

    def job(self, number: str) -> Job:
        """A job that was submitted."""
        return Job(self.folder / number, self.environment)


class Job:
    """A job from its submission to its end."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.id, self.restarts = folder, folder.name, 0
        self.reaches = "all"  # or "tasks"
        self.logs: Path | None = None  # a folder of what the steps print elsewhere
        self.options: dict[str, str] = json.loads((folder / "options.json").read_text())
        nodes = int(self.options.get("nodes", "1").split("-")[-1])
        hosts = f"127.0.0.[1-{nodes}]" if nodes > 1 else "127.0.0.1"
        self._environment = environment | {
            "SLURM_JOB_ID": self.id,
            "SLURM_JOBID": self.id,
            "SLURM_JOB_NUM_NODES": str(nodes),
            "SLURM_NNODES": str(nodes),
            "SLURM_JOB_NODELIST": hosts,
            "SLURM_NTASKS_PER_NODE": self.options.get("ntasks-per-node", "1"),
            "SLURM_NTASKS": str(nodes * int(self.options.get("ntasks-per-node", "1"))),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._state("PENDING")

    def _state(self, state: str, reason: str = "None", preempted: str = "None") -> None:
        lines = f"JobState={state} Reason={reason} Dependency=(null)\n   PreemptTime={preempted}"
        (self.folder / "state").write_text(lines)

    @property
    def output(self) -> str:
        """All that the job has printed."""
        logs = self.logs.glob("*_log.*") if self.logs else []
        return "".join(p.read_text() for p in sorted([*self.folder.glob("out*"), *logs]))

    def start(self) -> None:
        """Run the script; its output is added to what an earlier start has printed."""
        (self.folder / "requeue").unlink(missing_ok=True)
        more = {"SLURM_RESTART_COUNT": str(self.restarts)} if self.restarts else {}
        self._state("RUNNING")
        with (self.folder / "out").open("ab") as out:
            self._process = subprocess.Popen(
                ["bash", str(self.folder / "script")],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=shlex.split(self.options.get("chdir", os.getcwd()))[0],
                env=self._environment | more,
                start_new_session=True,
            )

    def wait_until(self, condition: Callable[[], Any]) -> Any:
        """Wait for something that the job does."""
        deadline = time.monotonic() + _SECONDS
        while not (found := condition()):
            assert self._process is not None
            assert self._process.poll() is None or condition(), f"ended early\n{self.output}"
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)
        return found

    def signal(self, number: int) -> None:
        """To the processes of the job's steps, as ``sbatch --signal`` and ``scancel --signal`` send it."""
        for process in self._step():
            with contextlib.suppress(psutil.Error):
                is_task = process.ppid() in self._sruns()
                if self.reaches == "all" or is_task or number == signal.SIGKILL:
                    process.send_signal(number)

    def _sruns(self) -> list[int]:
        assert self._process is not None
        with contextlib.suppress(psutil.Error):
            return [one.pid for one in psutil.Process(self._process.pid).children()]
        return []

    def _step(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                variables = process.environ()
                if variables.get("SLURM_JOB_ID") == self.id and "SLURM_STEP_ID" in variables:
                    found.append(process)
        return found

    def preempt(self) -> None:
        """With a grace time, in which the job's state is still RUNNING."""
        self._state("RUNNING", preempted="2026-01-01T12:00:00")
        self._terminate()

    def reach_limit(self) -> None:
        """The time limit is over."""
        self._state("COMPLETING", "TimeLimit")
        self._terminate()

    def cancel(self) -> None:
        """As ``scancel`` does."""
        self._state("COMPLETING")
        self._terminate()

    def _terminate(self) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        if self._process is not None and self.state != "RUNNING":  # the batch shell, too
            self._process.send_signal(signal.SIGTERM)

    @property
    def state(self) -> str:
        """As ``scontrol show job`` has it."""
        return (self.folder / "state").read_text().split("=")[1].split()[0]

    def ends(self) -> int:
        """The exit code of this start; a job that is put back into the queue is ended first."""
        assert self._process is not None
        killed_at: float | None = None
        deadline = time.monotonic() + _SECONDS
        while self._process.poll() is None or self._step():
            if killed_at is None and self.is_requeued:
                killed_at = time.monotonic() + KILL_WAIT
                self._state("COMPLETING")
                self._terminate()
            if killed_at is not None and time.monotonic() > killed_at:
                self.signal(signal.SIGKILL)
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)
        return self._process.returncode

    @property
    def is_requeued(self) -> bool:
        """Whether ``scontrol requeue`` was called since the start."""
        return (self.folder / "requeue").exists()

    def restart(self) -> None:
        """Start again, after the queue."""
        assert self.is_requeued, self.output
        self.restarts += 1
        self.start()

    def close(self) -> None:
        """Kill what is left of it."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self.signal(signal.SIGKILL)
