"""How a script becomes ranks, how ranks join, and how they end: real processes, and what they noted.

A job is launch_job.py. Every process of one carries a mark in its environment, by which
those that outlive it are found.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from helpers.environment import clean_environment
from helpers.pairwise import soaked
from helpers.ports import free_port
from helpers.processes import notes as notes_of
from helpers.ranks import Job as Ranks
from helpers.ranks import forked_python, run_ranks

from paceline import PacelineError, Run, Trainer
from paceline.trainer.checkpoint.files.integrity import verify

JOB = Path(__file__).with_name("launch_job.py")
SECONDS = 90  # what any job may take on a machine that is busy
WITHOUT_END = 10**9
MARK = "PACELINE_TEST_MARK"


def processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Job:
    """A command under way in a folder of its own, with everything it starts."""

    def __init__(self, folder: Path, command: list, env: dict | None = None, threads: int | None = 1):
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.out, self.err = folder / f"out-{self.mark}", folder / f"err-{self.mark}"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                env=clean_environment(threads) | (env or {}) | {MARK: self.mark},
                start_new_session=True,  # a Ctrl-C goes to the whole group of the launcher
            )

    def notes(self, what: str) -> list[dict]:
        return notes_of(self.folder, what)

    def pid_of(self, rank: int | None) -> int:
        """Of a rank; None: of what starts the ranks."""
        number = None if rank is None else str(rank)
        return next(n["pid"] for n in self.notes("top") if n["rank"] == number)

    def wait_for(self, what: str, count: int) -> None:
        """Until so many notes of that kind are there."""

        def is_there() -> bool:
            assert self.process.poll() is None, self.printed()
            return len(self.notes(what)) >= count

        wait_until(is_there, self.printed)

    def ends(self) -> int:
        """Its exit code, once it and everything it started is gone."""
        try:
            code = self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it did not end\n{self.printed()}")
        self.is_gone()
        return code

    def is_gone(self) -> None:
        wait_until(lambda: not self.left(), lambda: f"still running: {self.left()}\n{self.printed()}")

    def left(self) -> list[psutil.Process]:
        """Its processes that are alive; a zombie is not."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def printed(self) -> str:
        return f"stdout:\n{self.out.read_text()}\nstderr:\n{self.err.read_text()[-6000:]}"


def wait_until(condition: Callable, printed: Callable) -> None:
    """Wait for something that a job does."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, printed()
        time.sleep(0.05)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts a job; at the end no process of any is left, whatever became of its test."""
    jobs = []

    def begin(command: list, folder: Path | None = None, **options) -> Job:
        jobs.append(Job(folder or tmp_path_factory.mktemp("job"), command, **options))
        return jobs[-1]

    yield begin
    for job in jobs:
        for process in job.left():
            with contextlib.suppress(psutil.Error):
                process.kill()
        job.process.wait(10)


@pytest.fixture(scope="module")
def python(request):
    """What runs launchers and ranks where starting is not the subject: forks, but for ``--soak``."""
    return sys.executable if request.config.getoption("--soak") else forked_python()


def script(*arguments: str, python: str = sys.executable, **options) -> list:
    return [python, JOB, ".", json.dumps(options), *arguments]


def torchrun(*arguments: str, python: str = sys.executable) -> list:
    return [python, "-m", "torch.distributed.run", *arguments]


def of_both(notes: list[dict], key: str) -> list:
    """The value that ranks 0 and 1 noted."""
    assert sorted(n["rank"] for n in notes) == [0, 1], notes
    return [n[key] for n in sorted(notes, key=lambda n: n["rank"])]


# -- a plain `python -m job` starts its ranks --------------------------------------------------

ARGUMENTS = ["two words", "", "--nproc", "7", "--nproc=3", "--", "-m", "*", '"quoted"', "--help"]


@pytest.fixture(scope="module")
def plain(start, tmp_path_factory):
    """A module that trains twice and validates after it; no thread count is set, torch's port is taken."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "pack").mkdir()
    (folder / "pack" / "train.py").write_text(JOB.read_text())
    command = [sys.executable, "-m", "pack.train", ".", json.dumps({"again": True}), *ARGUMENTS]
    with socket.socket() as taken:
        with contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", 29500))
            taken.listen()
        job = start(command, folder, threads=None)
        job.code = job.ends()
    return job


@pytest.mark.fault(27)
def test_a_plain_script_trains_on_its_ranks_and_ends_with_0(plain):
    assert plain.code == 0, plain.printed()
    assert of_both(plain.notes("end")[:2], "world") == [2, 2]
    assert {n["strategy"] for n in plain.notes("end")} == {"ddp"}
    assert plain.err.read_text() == ""


def test_ranks_keep_module_arguments_and_folder(plain):
    tops = plain.notes("top")
    assert tops[0]["rank"] is None
    assert sorted(n["rank"] for n in tops[1:]) == ["0", "1"]
    assert {n["folder"] for n in tops} == {str(plain.folder)}
    for top in tops:
        assert top["argv"] == tops[0]["argv"]
    assert tops[0]["argv"][3:] == ARGUMENTS


def test_the_launching_process_stops_at_the_first_fit(plain):
    launcher = plain.notes("top")[0]["pid"]
    assert launcher == plain.process.pid
    everything = [json.loads(line) for line in (plain.folder / "notes").read_text().splitlines()]
    assert [n["what"] for n in everything if n["pid"] == launcher] == ["top", "imported"]


def test_fit_again_and_validate_after_it_work_on_all_ranks(plain):
    assert {n["run"] for n in plain.notes("end")} == {str(plain.folder / "runs/line" / n) for n in "12"}
    assert of_both(plain.notes("end")[2:], "step") == [5, 5]
    first, second = of_both(plain.notes("validated"), "loss")
    assert first == second > 0


def test_rank_0_prints_untouched_and_the_others_into_their_log(plain):
    lines = plain.out.read_text().splitlines()
    assert lines[:2] == ["printed above by None", "printed above by 0"]
    assert lines[-1] == "printed below by 0"
    assert "starts fresh" in lines
    assert not [line for line in lines if "by 1" in line]
    logs = [(plain.folder / f"runs/line/{n}/log-rank-1.txt").read_text().splitlines() for n in (1, 2)]
    assert logs[0][0] == "printed above by 1"
    assert "printed above by 1" not in logs[1]
    assert logs[1][-1] == "printed below by 1"


def test_training_starts_with_the_weights_of_rank_0(plain):
    start = of_both(plain.notes("start")[:2], "weights")
    assert start[0] == start[1]


def test_two_ranks_train_what_one_device_trains(plain, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["job", ".", "{}"])
    spec = load_job("one_device")
    module = spec.Line()
    begin, end = (of_both(plain.notes(what)[:2], "weights")[0] for what in ("start", "end"))
    torch.nn.utils.vector_to_parameters(torch.tensor(begin), module.parameters())
    loader = torch.utils.data.DataLoader(spec.Points(), 4, shuffle=True)
    Trainer(
        accelerator="cpu", devices=1, max_steps=5, global_batch_size=8, progress=False, loggers=False
    ).fit(module, loader)
    found = torch.nn.utils.parameters_to_vector(module.parameters())
    torch.testing.assert_close(found, torch.tensor(end), rtol=1e-4, atol=1e-5)
    assert (found - torch.tensor(begin)).abs().max() > 0.01


def load_job(name: str):
    """The job script as a module."""
    found = importlib.util.spec_from_file_location(name, JOB)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_threads_are_shared_out_among_ranks(plain):
    each = max(1, processors() // 2)
    assert [n["omp"] for n in plain.notes("top")] == [None, str(each), str(each)]
    assert {n["threads"] for n in plain.notes("end")} == {each}


def test_folder_options_and_thread_count_of_the_command_stay(start, tmp_path):
    """A relative path, options of the interpreter, a thread count that is set, a script that moves on."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(JOB.read_text())
    options = json.dumps({"moves": "elsewhere", "ends_before": 7})
    command = [sys.executable, "-W", "ignore", "code/train.py", tmp_path, options]
    job = start(command, tmp_path, threads=3)
    assert job.ends() == 7, job.printed()
    seen = [n["omp"] for n in job.notes("top")]
    assert set(seen) == {"3"}
    assert len(seen) in (2, 3)  # the other rank may be ended before it has begun
    assert {n["folder"] for n in job.notes("top")} == {str(tmp_path)}


@pytest.mark.soak
def test_python_c_can_be_started_again(start):
    text = f"import runpy; runpy.run_path({str(JOB)!r}, run_name='__main__')"
    job = start([sys.executable, "-c", text, ".", json.dumps({"ends_before": 7})])
    assert job.ends() == 7, job.printed()
    ranks = sorted(n["rank"] or "" for n in job.notes("top"))
    assert ranks[0] == ""
    assert ranks[1:] in (["0"], ["1"], ["0", "1"])  # one that ends so takes the other with it


# -- a signal stops a job in order -------------------------------------------------------------

STOPS = {  # what, to whom, the exit code; SIGTERM to a launcher alone: see the two launchers below
    "Ctrl-C": (signal.SIGINT, "launcher", 130),
    "SIGTERM to a rank": (signal.SIGTERM, "1", 143),
    "SIGINT to a rank": (signal.SIGINT, "0", 130),
    "SIGTERM to all": (signal.SIGTERM, "all", 143),  # as a batch system sends it
}


# test_signals.py sends SIGTERM and SIGINT to ranks at every place, test_slurm.py SIGTERM to all of a job.
USUAL_STOPS = ("Ctrl-C",)


@pytest.fixture(scope="module")
def endless(start, python, request):
    """Jobs that train until a signal, all at once: most of what they take is waiting."""
    names = STOPS if request.config.getoption("--soak") else USUAL_STOPS
    options = {"python": python, "steps": WITHOUT_END}
    return {name: start(script(workers="Ctrl-C" in name, **options)) for name in names}


@pytest.mark.fault(7)
@pytest.mark.parametrize("name", soaked(list(STOPS), USUAL_STOPS))
def test_a_signal_stops_all_ranks_at_one_step_with_a_checkpoint(endless, name):
    number, whom, code = STOPS[name]
    job = endless[name]
    job.wait_for("trains", 2)
    if whom == "launcher":
        os.killpg(job.pid_of(None), number)
    elif whom == "all":
        for process in job.left():
            process.send_signal(number)
    else:
        os.kill(job.pid_of(int(whom)), number)
    assert job.ends() == code, job.printed()
    stopped_in_order([job], number)
    shown = set(job.err.read_text().splitlines()) - {""}
    assert shown <= {"stopping at the end of this step; a second signal ends at once"}


def stopped_in_order(jobs: list[Job], number: int) -> None:
    """All ranks at one step, which is the only one that is saved; and nothing after fit was run."""
    job = jobs[0]
    steps = of_both(job.notes("end"), "step")
    assert steps[0] == steps[1] >= 3
    said = f"{signal.Signals(number).name} received"
    assert all(reason.startswith(said) for reason in of_both(job.notes("end"), "reason"))
    run = Run(job.folder / "runs/line/1")
    assert [p.name for p in run.checkpoints] == [f"step-{steps[0]:08d}"]
    verify(run.latest)
    assert not job.notes("after fit")
    assert not [job for job in jobs if "Traceback" in job.printed()]


@pytest.mark.fault(30)
def test_no_rank_outlives_a_killed_launcher(start):
    """Nor the process that reads for it."""
    job = start(script(steps=WITHOUT_END, workers=1))
    job.wait_for("trains", 2)
    job.process.kill()
    job.is_gone()


@pytest.mark.fault(30)
def test_no_rank_outlives_a_launcher_that_is_killed_early(start):
    """Ranks that have not imported paceline yet; until they do, nobody else is given their port."""
    job = start(script(waits_before=True))
    job.wait_for("top", 3)
    port = int(next(note["port"] for note in job.notes("top") if note["rank"] == "0"))
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    job.process.kill()
    job.is_gone()


def test_ctrl_c_ends_ranks_that_have_not_begun_to_train(start):
    job = start(script(waits_before=True))  # ranks that are forked would begin while others are started
    job.wait_for("top", 3)
    os.killpg(job.pid_of(None), signal.SIGINT)
    assert job.ends() == 130, job.printed()


@pytest.mark.launch
@pytest.mark.fault(9)
def test_a_second_ctrl_c_ends_a_rank_that_never_comes_out_of_its_step(tmp_path):
    with Ranks(JOB, 1, ".", '{"stuck": 0}', folder=tmp_path, launches=True) as job:
        wait_until(lambda: notes_of(tmp_path, "stuck"), job.printed)
        os.killpg(job.pids[0], signal.SIGINT)
        wait_until(lambda: "stopping at the end of this step" in job.errors(), job.printed)
        time.sleep(2)  # two in one moment may be one signal that came twice
        os.killpg(job.pids[0], signal.SIGINT)
        outcome = job.wait()
    assert (outcome.codes, outcome.left) == ([130], []), outcome.output


# -- a rank that fails -------------------------------------------------------------------------


@pytest.mark.launch
@pytest.mark.fault(18)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        # test_root_cause.py has it by default, too.
        pytest.param("raise", "ArithmeticError: in a step of rank 1", marks=pytest.mark.soak),
        ("before", "ArithmeticError: before there is a trainer"),
    ],
)
def test_the_traceback_of_a_rank_that_fails_is_printed(tmp_path, how, said):
    options = json.dumps({"fails": how})
    outcome = run_ranks(JOB, 1, ".", options, folder=tmp_path, check=False, launches=True)
    assert outcome.codes == [1], outcome.output
    assert said in outcome.stderr
    assert "Traceback (most recent call last)" in outcome.stderr
    assert "launch_job.py" in outcome.stderr
    assert not notes_of(tmp_path, "end")


@pytest.mark.soak
@pytest.mark.fault(18)
def test_the_others_end_soon_even_in_a_long_step(start):
    """A rank that cannot come to the end of its step is not waited for."""
    job = start(script(fails="kill", stuck=0))
    job.wait_for("stuck", 1)
    assert job.ends() == 128 + signal.SIGKILL, job.printed()
    assert "rank 1 ended with signal SIGKILL" in job.err.read_text()


# -- ranks that somebody else started ----------------------------------------------------------


@pytest.mark.fault(7)
def test_torchrun_starts_one_job_and_an_orderly_stop_is_no_failure(start, python):
    """Worlds other than the one asked for are refused on all ranks, before any sample is read."""
    bad = [{"devices": 4}, {"strategy": "single"}, {"devices": 2, "num_nodes": 2}, {"devices": 1}]
    options = {"refused": bad, "trainers": [{"devices": "auto"}], "steps": WITHOUT_END}
    starts = torchrun("--standalone", "--nproc-per-node=2", python=python)
    job = start([*starts, *script(**options)[1:]])
    job.wait_for("trains", 2)
    os.kill(job.pid_of(1), signal.SIGTERM)
    assert job.ends() == 0, job.printed()
    assert of_both(job.notes("end"), "world") == [2, 2]
    assert {n["run"] for n in job.notes("end")} == {str(job.folder / "runs/line/1")}
    assert len(list((job.folder / "runs/line").iterdir())) == 1
    assert not job.notes("after fit")
    assert not job.notes("allowed")
    for arguments in bad:
        printed = [n for n in job.notes("refused") if n["of"] == json.dumps(arguments)]
        said = of_both(printed, "said")
        assert "2 ranks" in said[0]
        assert "fix:" in said[1]
    whats = [json.loads(line)["what"] for line in (job.folder / "notes").read_text().splitlines()]
    assert "refused" not in whats[whats.index("read") :]


@pytest.mark.soak
def test_paceline_launch_passes_through_to_torchrun(start):
    """Options before the script are torchrun's, all after it are the script's."""
    launch = [sys.executable, "-m", "paceline", "launch", "--nproc", "2", "--max-restarts=0"]
    job = start([*launch, *script(*ARGUMENTS, ends_before=0)[1:]])
    assert job.ends() == 0, job.printed()
    assert sorted(n["rank"] for n in job.notes("top")) == ["0", "1"]
    assert [n["argv"][3:] for n in job.notes("top")] == [ARGUMENTS] * 2


def test_a_script_under_paceline_launch_joins_and_its_failure_is_the_launcher_s(start, python):
    launch = [python, "-m", "paceline", "launch", "--nproc=2"]
    job = start([*launch, *script(fails="raise on rank 0")[1:]])
    assert job.ends() == 1
    assert of_both(job.notes("start"), "world") == [2, 2]
    assert "ArithmeticError: in a step of rank 0" in job.err.read_text()
    assert "printed above by 1" not in job.printed()


@pytest.mark.launch  # for its length
def test_a_process_group_that_exists_is_used_and_ranks_that_differ_are_named(tmp_path):
    """Two processes that nobody launched: the script itself says where they stand."""
    options = {"differs": True, "trainers": [{"devices": "auto"}]}
    arguments = [json.dumps({"own_group": rank} | options) for rank in range(2)]
    with (
        Ranks(JOB, 1, ".", arguments[0], folder=tmp_path) as first,
        Ranks(JOB, 1, ".", arguments[1], folder=tmp_path) as second,
    ):
        ended = [job.wait() for job in (first, second)]
    assert [one.codes for one in ended] == [[0], [0]], ended[0].output + ended[1].output
    assert [n["sum"] for n in notes_of(tmp_path, "own group")] == [2, 2]
    assert of_both(notes_of(tmp_path, "end"), "world") == [2, 2]
    names = {"argument": "Trainer(seed=...)", "data": "training data", "module": "module"}
    names["callbacks"] = "list of callbacks"
    for what, named in names.items():
        said = of_both(notes_of(tmp_path, "refused", of=what), "said")
        assert said[0] == said[1]
        assert said[0].startswith(f"rank 1 has another {named} than rank 0")
        assert len(said[0]) < 1000
    whats = [json.loads(line)["what"] for line in (tmp_path / "notes").read_text().splitlines()]
    assert max(i for i, w in enumerate(whats) if w == "refused") < whats.index("read")


@pytest.mark.soak
def test_two_agents_of_torchrun_train_together(start, tmp_path):
    """Two machines, as far as the agents know: with the world left alone, and asked for."""
    options = {"trainers": [{"devices": "auto"}, {"devices": 1, "num_nodes": 2}]}
    options["refused"] = [{"devices": 2, "num_nodes": 2}]
    meet = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-id={uuid.uuid4()}"]
    command = [*torchrun(*meet, f"--rdzv-endpoint=127.0.0.1:{free_port()}"), *script(**options)[1:]]
    both = [start(command, tmp_path), start(command, tmp_path)]
    assert [job.ends() for job in both] == [0, 0], both[0].printed() + both[1].printed()
    ends = both[0].notes("end")
    assert [of_both(n, "world") for n in (ends[:2], ends[2:])] == [[2, 2], [2, 2]]
    assert {n["local_rank"] for n in ends} == {0}
    assert {n["run"] for n in ends} == {str(tmp_path / "runs/line" / n) for n in "12"}
    assert len(both[0].notes("refused")) == 2


@pytest.mark.launch
def test_the_variables_of_a_train_job_of_kubeflow_are_enough(tmp_path):
    """Its runtime numbers the pods, and names the first one; those of test_hosts.py have a network."""
    options = json.dumps({"trainers": [{"devices": "auto"}]})
    variables = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "127.0.0.1"}
    variables["PET_MASTER_PORT"] = str(free_port())
    pods = [
        Ranks(
            "paceline", 1, "launch", JOB, ".", options, folder=tmp_path, launches=True,
            environment=variables | {"PET_NODE_RANK": str(pod)},
        )
        for pod in range(2)
    ]  # fmt: skip
    with pods[0], pods[1]:
        ended = [pod.wait() for pod in pods]
    assert [one.codes for one in ended] == [[0], [0]], ended[0].output + ended[1].output
    assert of_both(notes_of(tmp_path, "end"), "world") == [2, 2]
    assert {one["local_rank"] for one in notes_of(tmp_path, "end")} == {0}
    start, end = (of_both(notes_of(tmp_path, what), "weights") for what in ("start", "end"))
    assert start[0] == start[1] != end[0] == end[1]


@pytest.mark.soak  # an environment that test_environment.py reads, with a real job
def test_two_plain_scripts_meet_by_the_variables_of_kubernetes(start, tmp_path):
    """Under a strategy of the script's own; each of the two ranks has the threads of a machine."""
    port = str(free_port())
    variables = {"PET_NNODES": "2", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port}
    command = script(trainers=[{"devices": 1, "num_nodes": 2, "strategy": "own"}])
    both = [
        start(command, tmp_path, env=variables | {"PET_NODE_RANK": str(node)}, threads=None)
        for node in range(2)
    ]
    assert [job.ends() for job in both] == [0, 0], both[0].printed() + both[1].printed()
    job = both[0]
    assert of_both(job.notes("end"), "world") == [2, 2]
    assert {n["omp"] for n in job.notes("top") if n["rank"]} == {str(processors())}
    for what in ("start", "end"):
        weights = of_both(job.notes(what), "weights")
        assert weights[0] == weights[1]
    assert of_both(job.notes("start"), "weights") != of_both(job.notes("end"), "weights")


@pytest.mark.soak
@pytest.mark.fault(7)
def test_sigterm_to_one_of_two_launchers_stops_both_in_order(start, tmp_path):
    """They meet by a rendezvous of torchrun's; each starts one rank."""
    variables = {"PET_NNODES": "2", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ID": str(uuid.uuid4())}
    variables["PET_RDZV_ENDPOINT"] = f"127.0.0.1:{free_port()}"
    command = script(steps=WITHOUT_END, trainers=[{"devices": 1, "num_nodes": 2}])
    both = [start(command, tmp_path, env=variables) for _ in range(2)]
    both[0].wait_for("trains", 2)
    os.kill(both[1].process.pid, signal.SIGTERM)
    assert [job.ends() for job in both] == [143, 143], both[0].printed() + both[1].printed()
    stopped_in_order(both, signal.SIGTERM)


@pytest.mark.parametrize("variables", [{}, {"PET_NNODES": "2:2"}])
def test_two_machines_without_a_meeting_place_are_refused(tmp_path, variables):
    options = json.dumps({"trainers": [{"devices": 1, "num_nodes": 2}]})
    outcome = run_ranks(JOB, 1, ".", options, folder=tmp_path, check=False, environment=variables)
    assert outcome.codes == [1]
    assert "no rendezvous is configured" in outcome.stderr
    assert not notes_of(tmp_path, "read")


# -- programs that cannot be started again -----------------------------------------------------

_TRAIN = """import sys
sys.argv = ["job", {folder!r}, '{{"trainers": []}}']
exec(compile(open({job!r}).read(), {job!r}, "exec"))
refused("devices=2", train, Line(), devices=2)
train(Line(), devices="auto")
"""


@pytest.mark.parametrize(
    ("options", "why"),
    [
        pytest.param(["-", "-c", "config.yaml"], "does not come from a file", id="stdin"),
        pytest.param(["-i", "-q"], "interactive", id="prompt", marks=pytest.mark.soak),
    ],
)
def test_what_cannot_be_started_again_says_so_and_trains_on_one_device(tmp_path, options, why):
    done = subprocess.run(
        [sys.executable, *options],
        input=_TRAIN.format(folder=str(tmp_path), job=str(JOB)),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=clean_environment(),
    )
    assert done.returncode == 0, done.stderr
    notes = [json.loads(line) for line in (tmp_path / "notes").read_text().splitlines()]
    said = [n["said"] for n in notes if n["what"] == "refused"]
    assert len(said) == 1, done.stderr
    assert why in said[0]
    assert "fix: " in said[0]
    assert [n["world"] for n in notes if n["what"] == "end"] == [1]


def test_under_pytest_several_ranks_are_refused_and_auto_is_one_device():
    with pytest.raises(PacelineError, match="pytest would be started again") as raised:
        Trainer(accelerator="cpu", devices=2)
    assert "fix: " in str(raised.value)
    assert Trainer(accelerator="cpu").world_size == 1
