"""Jobs of SLURM: their script, a stop in order, the queue, and the run that continues."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.environment import clean_environment
from helpers.pairwise import soaked
from helpers.processes import notes
from helpers.ranks import forked_python
from helpers.slurm import Cluster, uninterrupted
from helpers.small_net import Net, data

from paceline import PacelineError, Trainer
from paceline.strategies.launch.launcher import launch
from paceline.strategies.launch.slurm import SlurmJob, current_job
from paceline.trainer.run.requeued import identity, requeued_runs

JOB = Path(__file__).with_name("slurm_job.py")


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
        f"srun --kill-on-bad-exit=1 {sys.executable} -m paceline launch --nnodes 2 --nproc 8 "
        '--rdzv-backend=c10d --rdzv-endpoint="$head_node:$((10000 + SLURM_JOB_ID % 19000))" '
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
        (["-m", "pkg.train"], "#SBATCH --job-name=train\n", "exec"),
        (["--sbatch", "comment=two words", "train.py"], "#SBATCH --comment='two words'\n", "comment=two"),
        (["--nnodes=2", "--rdzv-backend=c10d", "t.py"], '--rdzv-endpoint="$head_node', "exec"),
        (["--nnodes=2", "--master_addr=a", "t.py"], "--master_addr=a t.py", "head_node"),
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
        (["--slu", "train.py"], "written in full"),
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
        ("RUNNING Reason=None PreemptTime=None", signal.SIGUSR1, True),
        ("RUNNING Reason=None PreemptTime=None", signal.SIGUSR2, True),
        ("RUNNING Reason=None PreemptTime=2026-01-01T12:00:00", signal.SIGTERM, True),
        ("COMPLETING Reason=TimeLimit PreemptTime=None", signal.SIGTERM, True),
        (
            "RUNNING Reason=None PreemptTime=None",
            signal.SIGTERM,
            False,
        ),  # of somebody else: `timeout`, srun
        ("COMPLETING Reason=None PreemptTime=None", signal.SIGTERM, False),  # cancelled
        ("COMPLETING Reason=None PreemptTime=None", signal.SIGUSR1, False),  # cancelled during the save
        ("CANCELLED Reason=None PreemptTime=None", signal.SIGTERM, False),
        ("RUNNING Reason=None PreemptTime=None", signal.SIGINT, False),
    ],
)
def test_which_signal_requeues_a_job(job, state, number, requeues):
    (job.folder / "state").write_text(f"JobState={state}")
    line = current_job().requeue_after(number, has_trained=True)
    assert line == (f"SLURM job {job.id} is requeued; it resumes in this run folder" if requeues else "")
    assert job.is_requeued is requeues


def test_a_job_whose_starts_are_too_short_is_not_requeued_without_end(job):
    assert "is requeued" in SlurmJob(job.id).requeue_after(signal.SIGUSR1, has_trained=False)
    (job.folder / "requeue").unlink()
    line = SlurmJob(job.id, restarts=1).requeue_after(signal.SIGUSR1, has_trained=False)
    assert "no step was done between its start and SIGUSR1" in line
    assert not job.is_requeued
    assert "is requeued" in SlurmJob(job.id, restarts=1).requeue_after(signal.SIGUSR1, has_trained=True)


def test_a_task_of_an_array_is_requeued_alone(job, monkeypatch):
    options = json.loads((job.folder / "options.json").read_text()) | {"array": "0-3"}
    (job.folder / "options.json").write_text(json.dumps(options))
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", job.id)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    assert "is requeued" in current_job().requeue_after(signal.SIGUSR1, has_trained=True)
    assert current_job().name == f"slurm/{job.id}_3"


@pytest.mark.parametrize(
    ("number", "path", "why"),
    [("1", None, "Invalid job id"), ("1", "/nowhere", "No such file or directory: 'scontrol'")],
)
def test_a_job_that_cannot_be_requeued_is_a_warning(job, monkeypatch, number, path, why):
    if path is not None:
        monkeypatch.setenv("PATH", path)
    line = SlurmJob(number).requeue_after(signal.SIGUSR1, has_trained=True)
    assert line.startswith(f"warning: SLURM did not requeue job {number}: ")
    assert why in line
    assert SlurmJob(number).requeue_after(signal.SIGTERM, True) == ""  # nobody knows what it meant


# -- jobs that run -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The weights of a run that nothing interrupts."""
    return uninterrupted(JOB, tmp_path_factory.mktemp("expected"))


@pytest.fixture
def python(request):
    """What launchers and ranks are run by: forks, and under ``--soak`` interpreters of their own."""
    return sys.executable if request.config.getoption("--soak") else forked_python()


@pytest.fixture
def submit(cluster, python, tmp_path, monkeypatch):
    """Submits and starts the job."""
    jobs = []

    def begin(*options, **settings):
        with monkeypatch.context() as here:
            here.setattr(sys, "executable", python)
            for name in ("PATH", "STAND_IN_SLURM"):
                here.setenv(name, cluster.environment[name])
            assert launch(["--slurm", *options, str(JOB), json.dumps(settings)]) == 0
        (folder,) = cluster.folder.iterdir()
        jobs.append(cluster.job(folder.name))
        jobs[-1].start()
        return jobs[-1]

    yield begin
    for job in jobs:
        job.close()


def continues(job, folder, expected, after=None):
    """The job was put back once and its second start ends the run, in the same folder, as if never stopped.

    Args:
        after: The step of the checkpoint; None: whatever it was.
    """
    assert (job.folder / "requeue").read_text() == "requeue\n", job.output
    assert f"SLURM job {job.id} is requeued" in job.output
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
@pytest.mark.parametrize(
    ("nodes", "name", "reaches"),
    soaked(
        [(1, "SIGUSR1", "tasks"), (2, "SIGUSR1", "all"), (2, "SIGUSR2", "tasks")], [(2, "SIGUSR1", "all")]
    ),
)
def test_a_job_resumes_after_the_signal_before_its_limit(submit, tmp_path, expected, nodes, name, reaches):
    """The script asks for no resume: the job is the same one, and so are its run and its tracker's run."""
    job = submit("--nnodes", str(nodes), "--nproc", str(2 // nodes))
    job.reaches = reaches
    job.wait_until(lambda: notes(tmp_path, "step"))
    job.signal(signal.Signals[name])
    assert job.ends() != 0
    continues(job, tmp_path, expected)
    assert [one["id"] for one in notes(tmp_path, "tracker")] == [None, "id-1"]
    log = (tmp_path / "runs/n/1/log.txt").read_text()
    assert f"SLURM job {job.id} was requeued: start 2" in log


def save_under_signals(job, folder):
    """SIGTERM begins the grace time, SIGUSR1 comes before its end, SIGTERM at its end."""
    job.wait_until(lambda: notes(folder, "step"))
    job.preempt()
    job.wait_until(lambda: notes(folder, "saves"))
    for number in (signal.SIGUSR1, signal.SIGTERM):
        time.sleep(1.5)  # to the launchers and ranks a signal in the same second is the same one
        job.signal(number)
    (folder / "go-on").touch()
    assert job.ends() != 0


@pytest.mark.soak  # ranks that srun starts are preempted below
@pytest.mark.fault(46)
@pytest.mark.launch
def test_a_preempted_job_resumes_and_more_signals_do_not_end_its_save(submit, tmp_path, expected):
    job = submit("--nnodes", "2", waits=True)
    save_under_signals(job, tmp_path)
    continues(job, tmp_path, expected)


@pytest.mark.soak  # test_which_signal_requeues_a_job has what SLURM says of it
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
    """At its second start: at the first a signal before fit put it back into the queue."""
    job = submit("--nproc", "2", imports=True, slow=2)
    job.wait_until(lambda: len(notes(tmp_path, "imports")) == 2)
    job.signal(signal.SIGUSR1)
    assert job.ends() == 138
    job.restart()
    job.wait_until(lambda: notes(tmp_path, "step"))
    assert [one["step"] for one in notes(tmp_path, "begins")] == [0, 0]
    job.cancel()
    assert job.ends() == 143
    assert not job.is_requeued
    assert len(list((tmp_path / "runs/n/1/checkpoints").glob("step-*"))) == 1


@pytest.mark.soak  # so does that of test_a_cancelled_job_saves_and_stays_cancelled
@pytest.mark.launch
def test_a_signal_before_fit_requeues_the_job_too(submit, tmp_path, expected):
    job = submit("--nproc", "2", imports=True)
    job.wait_until(lambda: len(notes(tmp_path, "imports")) == 2)
    job.signal(signal.SIGUSR1)
    assert job.ends() == 138
    continues(job, tmp_path, expected, after=0)


@pytest.mark.fault(46)
@pytest.mark.launch
@pytest.mark.parametrize("how", soaked(["preempted", "SIGUSR1"], ["preempted"]))
def test_ranks_that_srun_starts_requeue_the_job_once(cluster, python, tmp_path, expected, how):
    """Without a launcher: ``srun python train.py`` with a task for each rank."""
    settings = json.dumps({"waits": how == "preempted"})
    (tmp_path / "job.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --requeue\n"
        f"#SBATCH --chdir={tmp_path}\nsrun {python} {JOB} '{settings}'\n"
    )
    job = cluster.submit("sbatch", "job.sbatch", cwd=tmp_path)
    job.start()
    try:
        if how == "preempted":
            save_under_signals(job, tmp_path)
        else:
            job.wait_until(lambda: notes(tmp_path, "step"))
            job.signal(signal.SIGUSR1)
            assert job.ends() != 0
        continues(job, tmp_path, expected)
    finally:
        job.close()


@pytest.mark.soak  # test_which_signal_requeues_a_job has what SLURM says of such a SIGTERM
@pytest.mark.launch
def test_a_script_that_fails_is_not_requeued(submit, tmp_path):
    """srun ends the other launcher by SIGTERM, which looks like a preemption."""
    job = submit("--nnodes", "2", fails="1")
    assert job.ends() != 0
    assert not job.is_requeued, job.output
    assert "PacelineError: on purpose" in job.output


@pytest.mark.soak  # test_signals.py has one that nobody knows of
@pytest.mark.launch
def test_sigterm_that_slurm_did_not_send_ends_the_job(submit, tmp_path):
    job = submit("--nproc", "2")
    job.wait_until(lambda: notes(tmp_path, "step"))
    job.signal(signal.SIGTERM)
    assert job.ends() == 143
    assert not job.is_requeued


def test_programs_of_a_job_find_their_own_runs(tmp_path, monkeypatch):
    """They may have one command, and differ in their variables alone: their configurations differ."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    def note(number, fit, config):
        (tmp_path / number).mkdir()
        (tmp_path / number / "env.json").write_text(json.dumps(identity(fit, config)))

    note("1", 1, {"lr": 1})
    note("2", 1, {"lr": 2})
    note("3", 2, {"lr": 1})
    note("4", 1, {"lr": 1})
    with monkeypatch.context() as other:
        other.setenv("SLURM_JOB_ID", "8")
        note("5", 1, {"lr": 1})
    with monkeypatch.context() as other:
        other.setattr(sys, "argv", ["other.py"])
        note("6", 1, {"lr": 1})
    with monkeypatch.context() as other:
        other.setenv("SLURM_STEP_ID", "1")
        note("7", 1, {"lr": 1})
    (tmp_path / "8").mkdir()
    assert list(requeued_runs(tmp_path, identity(1, {"lr": 1}))) == []  # its first start
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    found = {lr: [one.name for one in requeued_runs(tmp_path, identity(1, {"lr": lr}))] for lr in (1, 2, 3)}
    assert found == {1: ["4", "1"], 2: ["2"], 3: []}
    assert [one.name for one in requeued_runs(tmp_path, identity(2, {"lr": 1}))] == ["3"]


def test_a_job_that_continues_another_ones_run_finds_it_again(tmp_path, monkeypatch):
    def fit(job, restarts, **more):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
        monkeypatch.setattr("paceline.trainer.loops.context.fits", itertools.count(1))
        trainer = Trainer(
            run_dir=tmp_path, name="n", accelerator="cpu", progress=False, loggers=False, max_epochs=3
        )
        return trainer.fit(Net(), data(), **more).folder.name

    assert fit("7", 0) == "1"
    assert fit("8", 0, resume="auto") == "1"
    assert fit("9", 0) == "2"  # the newest run is another job's
    assert fit("8", 1) == "1"
    assert fit("9", 1) == "2"
