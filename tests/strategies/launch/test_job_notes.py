"""Notes of ranks in the folder of their job."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

from paceline import PacelineError
from paceline.strategies.launch import elastic_agent, job_notes
from paceline.strategies.launch.failure_report import FailureReport


def test_a_rank_that_fails_again_while_it_ends_has_failed_at_the_first_time(tmp_path, monkeypatch):
    monkeypatch.setenv(job_notes.JOB, str(tmp_path))
    monkeypatch.setenv("RANK", "3")
    assert job_notes.note_failure(ArithmeticError("too much"))
    between = time.time_ns()
    assert job_notes.note_failure(PacelineError("a mistake"), "shown")
    (rank, noted), *others = job_notes.failures(tmp_path).items()
    assert (rank, others) == (3, [])
    assert noted.time <= between
    assert (noted.mistake, noted.message) == (True, "shown")
    assert "a mistake" in noted.what


@dataclass
class Ended:
    local_rank: int
    exitcode: int


@pytest.mark.parametrize(
    ("noted", "killed", "first"),
    [([1, 0], [], 1), ([0, 1], [], 0), ([1], [0], 0)],
    ids=["the other fails as its connections close", "in order", "killed"],
)
def test_the_rank_that_failed_first_is_reported_though_another_ended_before_it(
    tmp_path, monkeypatch, noted, killed, first
):
    monkeypatch.setenv(job_notes.JOB, str(tmp_path))
    for rank in noted:
        monkeypatch.setenv("RANK", str(rank))
        job_notes.note_failure(ArithmeticError("too much"), f"message of rank {rank}")
    report = FailureReport(tmp_path, range(2))
    report.failures = {0: Ended(0, -9 if killed else 1), 1: Ended(1, -15)}
    report.dead = {0}
    code, text = report.first()
    assert code == report.failures[first].exitcode
    assert f"rank {first} ended with" in next(line for line in text.splitlines() if " first" in line)
    assert text.endswith("the others were stopped" if killed else f"message of rank {first}")


class Ends:
    """A process that has ended when it is asked for the third time."""

    asked = 0

    def poll(self):
        self.asked += 1
        return 0 if self.asked == 3 else None


def test_the_launcher_waits_for_ranks_that_have_failed_and_for_no_others(tmp_path, monkeypatch):
    monkeypatch.setenv(job_notes.JOB, str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    job_notes.note_failure(ArithmeticError("too much"))
    processes = {0: Ends(), 1: Ends()}
    elastic_agent._wait_for_failed(tmp_path, processes)
    assert [one.asked for one in processes.values()] == [0, 3]


def test_without_a_launcher_nothing_is_noted(monkeypatch):
    monkeypatch.delenv(job_notes.JOB, raising=False)
    assert not job_notes.note_failure(ArithmeticError("too much"))


@pytest.mark.launch
@pytest.mark.parametrize(
    "whose", ["this process", "another process", "one that has ended", "one that is gone"]
)
def test_a_process_ends_with_the_launcher_that_started_it_and_with_no_other(whose):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    if whose == "one that is gone":
        ended.wait()
    launcher = {"this process": os.getpid(), "another process": os.getppid()}.get(whose, ended.pid)
    code = "from paceline.strategies.launch import job_notes as own; own.die_with_launcher(); print('on')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {job_notes.LAUNCHER: str(launcher)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    ended.wait()
    if "process" in whose:
        assert (done.returncode, done.stdout, done.stderr) == (0, "on\n", "")
    else:
        assert (done.returncode, done.stdout) == (137, "")
        assert done.stderr == f"the launcher, process {launcher}, is gone: this rank ends\n"
