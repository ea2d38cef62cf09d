"""However a launched job ends, nothing of it is left outside the run folder."""

import os
import socket
from functools import partial
from pathlib import Path

import pytest
from helpers import processes

JOB = Path(__file__).with_name("failing_job.py")


def ends(what, rank=1, at=3):
    return {"faults": [{"place": "training_step", "what": what, "rank": rank, "at": at}], "workers": 1}


CASES = {
    "in order": {"workers": 1},
    "with an error": ends("raise"),
    "one rank killed": ends("kill"),
    "launcher terminated": ends("stop the launcher"),
    "launcher killed": ends("kill the launcher"),
}


USUAL = ["launcher killed"]  # of errors and of ranks that are killed test_root_cause.py has jobs
ALL = [name if name in USUAL else pytest.param(name, marks=pytest.mark.soak) for name in CASES]


@pytest.fixture(scope="module")
def jobs(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("leftovers")

    def run(place, options):
        temporary = place / "temporary"
        temporary.mkdir(parents=True)
        return processes.run(JOB, place, options, TMPDIR=str(temporary))

    names = CASES if request.config.getoption("--soak") else USUAL
    work = {name: partial(run, options=CASES[name]) for name in names}
    return processes.side_by_side(folder, work, at_once=3)


@pytest.mark.parametrize("case", ALL)
def test_no_process_and_no_shared_memory_is_left(jobs, case):
    job = jobs[case]
    assert job.left == [], job.printed()
    pids = {str(note["pid"]) for what in ("reads", "begins", "meets") for note in job.notes(what)}
    assert pids, job.printed()
    left = [path.name for path in Path("/dev/shm").glob("torch_*") if path.name.split("_")[1] in pids]
    assert left == []


def left_in(job):
    """What is in its folder for temporary files, but for the cache that torch keeps for each user."""
    names = [path.name for path in (job.folder / "temporary").iterdir()]
    return [name for name in names if not name.startswith("torchinductor_")]


@pytest.mark.parametrize("case", ALL)
def test_the_folder_for_temporary_files_is_empty(jobs, case):
    job = jobs[case]
    left = left_in(job)
    if case == "launcher killed":  # no process is left to do it: the next launch does
        assert len(left) == 1
        assert left[0].startswith("paceline-")
        options = {"trainer": {"devices": 1, "max_epochs": 1, "max_restarts": 1}}  # it takes a launcher
        temporary = str(job.folder / "temporary")
        again = processes.run(JOB, job.folder, options, forked=True, TMPDIR=temporary)
        assert again.code == 0, again.printed()
        left = left_in(job)
    assert left == []


def test_a_folder_of_a_launcher_that_is_alive_is_left_alone(tmp_path, monkeypatch):
    from paceline.strategies.launch.launcher import remove_left_folders

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ours, other_host = f"paceline-{socket.gethostname()}", "paceline-else-999999999-d"
    names = [f"{ours}-{os.getpid()}-a", f"{ours}-999999999-b", f"{ours}-x-c", other_host, "other"]
    for name in names:
        (tmp_path / name).mkdir()
    remove_left_folders()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[:1] + names[2:])
