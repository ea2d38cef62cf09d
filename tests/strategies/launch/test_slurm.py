"""Jobs of SLURM: their script, a stop in order, the queue, and the run that continues."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.environment import clean_environment
from helpers.slurm import Cluster, notes, uninterrupted

from paceline import PacelineError
from paceline.strategies.launch.launcher import launch
from paceline.strategies.launch.slurm import SlurmJob, current_job

JOB = Path(__file__).with_name("slurm_job.py")
PACELINE = (sys.executable, "-m", "paceline", "launch")


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path / "slurm", clean_environment())


# -- the script ----------------------------------------------------------------------------------


def script(capsys, *arguments):
    assert launch(["--slurm", "--dry-run", *arguments]) == 0
    return capsys.readouterr().out


def test_the_script_of_a_job_on_several_machines(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = script(
        capsys,
        *("--nnodes", "2", "--nproc", "8", "--sbatch", "partition=gpu", "--sbatch=--time=4:00:00"),
        *("train.py", "--name", "a b", "--slurm"),
    )
    assert [line[len("#SBATCH --") :] for line in text.splitlines() if line.startswith("#SBATCH")] == [
        *("job-name=train", "nodes=2", "ntasks-per-node=1", "requeue", "open-mode=append"),
        *("signal=USR1@120", f"chdir={tmp_path}", "partition=gpu", "time=4:00:00"),
    ]
    assert text.splitlines()[-1] == (
        f"exec srun --kill-on-bad-exit=1 {sys.executable} -m paceline launch --nnodes 2 --nproc 8 "
        '--rdzv-backend=c10d --rdzv-endpoint="$head_node:$((20000 + SLURM_JOB_ID % 40000))" '
        """--rdzv-id="$SLURM_JOB_ID" train.py --name 'a b' --slurm"""
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "inside", "outside"),
    [
        (["train.py"], "#SBATCH --nodes=1\n", "--rdzv"),
        (["--sbatch", "signal=USR2@300", "train.py"], "#SBATCH --signal=USR2@300\n", "USR1"),
        (["--sbatch", "no-requeue", "train.py"], "#SBATCH --no-requeue\n", "--requeue"),
        (["--nnodes", "2:4", "train.py"], "#SBATCH --nodes=2-4\n", "2:4\n"),
        (["-m", "paceline", "fit", "gpt"], "launch -m paceline fit gpt\n", "--rdzv"),
        (
            ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a:1", "t.py"],
            "--rdzv-endpoint=a:1 t.py\n",
            "head_node",
        ),
    ],
)
def test_options_of_the_script(capsys, given, inside, outside):
    text = script(capsys, *given)
    assert inside in text
    assert outside not in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--slurm", "--sbatch", "nodes=3", "train.py"], "fix: --nnodes"),
        (["--slurm", "--sbatch", "-p gpu", "train.py"], "fix: --sbatch partition=gpu"),
        (["--slurm", "--sbatch", "time=1\nrm -r /", "train.py"], "a long option of sbatch"),
        (["--dry-run", "train.py"], "--slurm"),
    ],
)
def test_options_that_have_no_place(given, message):
    with pytest.raises(PacelineError) as error:
        launch(given)
    assert message in str(error.value)


def test_a_file_that_is_not_ours_is_kept_and_no_sbatch_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(PacelineError, match=r"no sbatch on this machine"):
        launch(["--slurm", "train.py"])
    with pytest.raises(PacelineError, match=r"no sbatch on this machine"):  # its own file is replaced
        launch(["--slurm", "train.py"])
    (tmp_path / "train.sbatch").write_text("#!/bin/bash\n")
    with pytest.raises(PacelineError, match=r"train.sbatch exists, and paceline did not write it"):
        launch(["--slurm", "train.py"])
    assert (tmp_path / "train.sbatch").read_text() == "#!/bin/bash\n"


# -- the queue -----------------------------------------------------------------------------------


@pytest.fixture
def job(cluster, tmp_path, monkeypatch):
    """A job that runs, in whose environment this process is."""
    (tmp_path / "train.sbatch").write_text("#!/bin/bash\n#SBATCH --requeue\ntrue\n")
    found = cluster.submit("sbatch", "train.sbatch", cwd=tmp_path)
    found.start()
    found.ends()
    for name, value in cluster.environment.items():
        if name in ("PATH", "STAND_IN_SLURM"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_JOB_ID", found.id)
    return found


@pytest.mark.parametrize(
    ("state", "number", "requeues"),
    [
        ("RUNNING Reason=None", signal.SIGUSR1, True),
        ("RUNNING Reason=None", signal.SIGUSR2, True),
        ("RUNNING Reason=None", signal.SIGTERM, True),  # preempted, in its grace time
        ("COMPLETING Reason=TimeLimit", signal.SIGTERM, True),
        ("COMPLETING Reason=None", signal.SIGTERM, False),  # cancelled
        ("CANCELLED Reason=None", signal.SIGTERM, False),
        ("RUNNING Reason=None", signal.SIGINT, False),
    ],
)
def test_which_signal_puts_a_job_back_into_the_queue(job, state, number, requeues):
    (job.folder / "state").write_text(f"JobState={state}")
    line = current_job().requeue_after(number)
    assert line == (
        f"SLURM job {job.id} is back in the queue; it resumes in this run folder" if requeues else ""
    )
    assert job.is_requeued is requeues


@pytest.mark.parametrize(
    ("number", "path", "why"),
    [("1", None, "Invalid job id"), ("1", "/nowhere", "No such file or directory: 'scontrol'")],
)
def test_a_job_that_cannot_be_put_back_is_a_warning(job, monkeypatch, number, path, why):
    if path is not None:
        monkeypatch.setenv("PATH", path)
    line = SlurmJob(number).requeue_after(signal.SIGUSR1)
    assert line.startswith(f"warning: SLURM did not put job {number} back into the queue: ")
    assert why in line
    assert SlurmJob(number).requeue_after(signal.SIGTERM) == ""  # nobody knows what it meant


# -- jobs that run -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The weights of a run that nothing interrupts."""
    return uninterrupted(JOB, tmp_path_factory.mktemp("expected"))


@pytest.fixture
def submit(cluster, tmp_path):
    """Submits and starts the job."""
    jobs = []

    def begin(*options, **settings):
        job = cluster.submit(*PACELINE, "--slurm", *options, str(JOB), json.dumps(settings), cwd=tmp_path)
        jobs.append(job)
        job.start()
        return job

    yield begin
    for job in jobs:
        job.close()


def continues(job, folder, expected, after=None):
    """The job was put back once and its second start ends the run, in the same folder, as if never stopped.

    Args:
        after: The step of the checkpoint; None: whatever it was.
    """
    assert (job.folder / "requeue").read_text() == "requeue\n", job.output
    assert f"SLURM job {job.id} is back in the queue" in job.output
    job.restart()
    assert job.ends() == 0, job.output
    (done,) = notes(folder, "done")
    assert done["start"] == "1"
    assert done["weights"] == expected
    began = [one["step"] for one in notes(folder, "begins") if one["start"] == "1"]
    assert len(began) == 2
    assert (began[0] > 0) if after is None else (began == [after, after]), job.output
    assert [path.name for path in (folder / "runs/n").iterdir()] == ["1"]


@pytest.mark.fault(46)
@pytest.mark.launch
@pytest.mark.parametrize(("nodes", "name"), [(1, "SIGUSR1"), (2, "SIGUSR1"), (2, "SIGUSR2")])
def test_a_job_resumes_after_the_signal_before_its_time_limit(submit, tmp_path, expected, nodes, name):
    """The script asks for no resume: the job is the same one, and so are its run and its tracker's run."""
    job = submit("--nnodes", str(nodes), "--nproc", str(2 // nodes))
    job.wait_until(lambda: notes(tmp_path, "step"))
    job.signal(signal.Signals[name])
    assert job.ends() != 0
    continues(job, tmp_path, expected)
    assert [one["id"] for one in notes(tmp_path, "tracker")] == [None, "id-1"]
    log = (tmp_path / "runs/n/1/log.txt").read_text()
    assert f"slurm/{job.id} was put back into the queue: start 2" in log


@pytest.mark.fault(46)
@pytest.mark.launch
def test_a_preempted_job_resumes_and_more_signals_do_not_end_its_save(submit, tmp_path, expected):
    """SIGTERM begins the grace time, SIGUSR1 comes before its end, SIGTERM at its end."""
    job = submit("--nnodes", "2", saves=5)
    job.wait_until(lambda: notes(tmp_path, "step"))
    job.preempt()
    job.wait_until(lambda: notes(tmp_path, "saves"))
    for number in (signal.SIGUSR1, signal.SIGTERM):
        time.sleep(1.5)  # to the launchers and ranks a signal in the same second is the same one
        job.signal(number)
    assert job.ends() != 0
    continues(job, tmp_path, expected)


@pytest.mark.fault(46)
@pytest.mark.launch
def test_a_job_at_its_time_limit_resumes(submit, tmp_path, expected):
    job = submit("--nproc", "2")
    job.wait_until(lambda: notes(tmp_path, "step"))
    job.reach_limit()
    assert job.ends() != 0
    continues(job, tmp_path, expected)


@pytest.mark.fault(46)
@pytest.mark.launch
def test_a_cancelled_job_saves_and_stays_cancelled(submit, tmp_path):
    job = submit("--nproc", "2")
    job.wait_until(lambda: notes(tmp_path, "step"))
    job.cancel()
    assert job.ends() == 143
    assert not job.is_requeued
    assert len(list((tmp_path / "runs/n/1/checkpoints").glob("step-*"))) == 1


@pytest.mark.launch
def test_a_signal_before_fit_puts_the_job_back_too(submit, tmp_path, expected):
    job = submit("--nproc", "2", imports=True)
    job.wait_until(lambda: len(notes(tmp_path, "imports")) == 2)
    job.signal(signal.SIGUSR1)
    assert job.ends() == 138
    continues(job, tmp_path, expected, after=0)


@pytest.mark.launch
def test_ranks_that_srun_starts_put_the_job_back_once(cluster, tmp_path, expected):
    """Without a launcher: ``srun python train.py`` with a task for each rank."""
    (tmp_path / "job.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --requeue\n"
        f"#SBATCH --chdir={tmp_path}\nsrun {sys.executable} {JOB} '{{}}'\n"
    )
    job = cluster.submit("sbatch", "job.sbatch", cwd=tmp_path)
    job.start()
    try:
        job.wait_until(lambda: notes(tmp_path, "step"))
        job.signal(signal.SIGUSR1)
        assert job.ends() != 0
        continues(job, tmp_path, expected)
    finally:
        job.close()


def test_another_job_starts_a_run_of_its_own(tmp_path, monkeypatch):
    """Two jobs of one script write into the same folder of runs."""
    from paceline.trainer.run.requeued import identity, requeued_run

    def note(number, job, fit=1, command=None):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        (tmp_path / number).mkdir()
        about = identity(fit) | {"command": sys.argv if command is None else command}
        (tmp_path / number / "env.json").write_text(json.dumps(about))

    note("1", "7")
    note("2", "7", fit=2)
    note("3", "8")
    note("4", "7", command=["other.py"])
    (tmp_path / "5").mkdir()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert requeued_run(tmp_path, 1) is None  # its first start
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    assert requeued_run(tmp_path, 1) == tmp_path / "1"
    assert requeued_run(tmp_path, 2) == tmp_path / "2"
    assert requeued_run(tmp_path, 3) is None
    assert os.environ["SLURM_JOB_ID"] == "7"
