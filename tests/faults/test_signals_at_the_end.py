"""SIGTERM to one rank of a launched job after the ranks have agreed for the last time."""

import json
from functools import partial
from pathlib import Path

import pytest
from helpers import processes
from helpers.ranks import run_ranks

from paceline import Run
from paceline.trainer.checkpoint.files.integrity import verify

JOB = Path(__file__).with_name("failing_job.py")
AGREED = {f"agreed on {rank}": {"arm": ["end.agreed", "SIGTERM", 1, rank]} for rank in (0, 1)}
CLOSED = {f"closed on {rank}": {"arm": ["end.closed", "SIGTERM", 1, rank]} for rank in (0, 1)}
LATER = {
    f"{place} on {rank}": {"faults": [{"place": place, "what": "terminate", "rank": rank}]}
    for place in ("after", "before exit", "exit")
    for rank in (0, 1)
}
CASES = AGREED | CLOSED | LATER
USUAL = ["closed on 1"]


class Forked:
    """The first case on ranks that no launcher has started."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder = folder
        self.outcome = run_ranks(JOB, 2, json.dumps(AGREED["agreed on 1"]), folder=folder, check=False)
        self.left = self.outcome.left
        codes = [code if code >= 0 else 128 - code for code in self.outcome.codes]  # as a shell shows them
        self.code = next((code for code in codes if code not in (0, 143)), 143)

    def printed(self):
        return self.outcome.stdout + self.outcome.stderr


@pytest.fixture(scope="module")
def jobs(request, tmp_path_factory):
    soaking = request.config.getoption("--soak")
    run = partial(processes.run, JOB, forked=not soaking)
    work = {name: partial(run, options=CASES[name]) for name in (CASES if soaking else USUAL)}
    work["agreed on 1, forked"] = Forked
    return processes.side_by_side(tmp_path_factory.mktemp("late"), work, at_once=3)


@pytest.mark.fault(37)
def test_the_job_ends_with_143_or_0_and_no_connection_error(jobs):
    for name, job in jobs.items():
        assert (job.left, job.code in (0, 143)) == ([], True), f"{name}: {job.printed()}"
        printed = job.printed().lower()
        for word in ("connection", "traceback", "gloo", "broken pipe"):
            assert word not in printed, f"{name}: {job.printed()}"


@pytest.mark.fault(37)
def test_the_run_was_finished_and_saved(jobs):
    for name, job in jobs.items():
        run = Run(job.folder / "runs/n/1")
        verify(run.latest)
        assert run.latest.name == "step-00000008", name


@pytest.mark.fault(37)
def test_a_signal_before_the_last_agreement_stops_all_ranks_in_order(jobs):
    for name in CLOSED:
        if name in jobs:
            job = jobs[name]
            assert job.code == 143, job.printed()
            assert job.notes("end") == []  # nothing of the script runs after fit
            assert "how the ranks ended" not in job.printed()
