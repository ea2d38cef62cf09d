"""What the variables of a launcher say of a process, and that processes train together by them alone.

The job is launch_job.py; nothing but variables tells its two processes of each other.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.environment import clean_environment
from helpers.pairwise import soaked
from helpers.processes import notes
from helpers.ranks import run_ranks

from paceline import PacelineError, Trainer
from paceline.strategies.launch.environment import find_environment, find_launcher_rank, first_host

JOB = Path(__file__).with_name("launch_job.py")
SECONDS = 90
NAMES = ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"]
SLURM = {"SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": "4711", "MASTER_ADDR": "127.0.0.1"}
OPEN_MPI = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
MPICH = ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]


@pytest.fixture
def set_variables(monkeypatch):
    """Sets variables in a process that no launcher has started; all is as before afterwards."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    kept = clean_environment()
    os.environ.clear()
    os.environ.update(kept)
    return lambda **variables: os.environ.update({k: str(v) for k, v in variables.items()})


# -- a variable at a time ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "values", "launcher"),
    [
        (["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"], [5, 8, 1, 4], "torchrun"),
        (NAMES, [5, 8, 1, "4(x2)"], "srun"),
        (NAMES, [5, 8, 1, "4"], "srun"),
        (OPEN_MPI, [5, 8, 1, 4], "Open MPI"),
        (MPICH, [5, 8, 1, 4], "MPICH"),
    ],
)
def test_the_rank_is_the_one_the_launcher_set(set_variables, names, values, launcher):
    set_variables(**dict(zip(names, values, strict=True)), MASTER_ADDR="somewhere", SLURM_JOB_ID=1)
    place = find_launcher_rank()
    assert (place.rank, place.world_size, place.local_rank, place.local_world_size) == (5, 8, 1, 4)
    assert place.launcher == launcher
    assert find_environment("cpu", "auto").nodes == 2
    # torch, and all that is built on it, reads the same from its own variables
    assert [os.environ[n] for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")] == list("5814")
    assert os.environ["MASTER_ADDR"] == "somewhere"


@pytest.mark.parametrize(("variables", "local"), [({}, 2), ({"LOCAL_RANK": 3}, 3)])
def test_a_rank_of_a_process_group_that_exists_is_numbered_on_its_machine(
    set_variables, monkeypatch, variables, local
):
    for name, value in {"is_initialized": True, "get_rank": 6, "get_world_size": 8}.items():
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    set_variables(LOCAL_WORLD_SIZE=4, **variables)
    place = find_launcher_rank()
    assert (place.rank, place.world_size, place.local_rank, place.local_world_size) == (6, 8, local, 4)


def test_machines_need_not_have_the_same_number_of_ranks(set_variables):
    set_variables(**dict(zip(NAMES, [6, 7, 0, "2(x3),1"], strict=True)), **SLURM)
    assert (find_launcher_rank().rank, find_launcher_rank().world_size) == (6, 7)


def test_torchrun_within_a_step_of_slurm_is_what_counts(set_variables):
    set_variables(RANK=1, WORLD_SIZE=4, LOCAL_RANK=1, LOCAL_WORLD_SIZE=2, MASTER_ADDR="a", MASTER_PORT=1)
    set_variables(**dict(zip(NAMES, [0, 2, 0, "1(x2)"], strict=True)))
    assert (find_launcher_rank().rank, find_launcher_rank().world_size) == (1, 4)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"SLURM_NTASKS": 4, "SLURM_JOB_ID": 7, "SLURM_NNODES": 2},  # salloc, then plain python
        {"SLURM_NTASKS": 4, "SLURM_PROCID": 0, "SLURM_LOCALID": 0},  # the script of sbatch
        {"SLURM_PROCID": 0, "SLURM_STEP_NUM_TASKS": 1, "SLURM_LOCALID": 0},  # srun --pty bash
        {"OMPI_COMM_WORLD_RANK": 0, "OMPI_COMM_WORLD_SIZE": 1},
    ],
)
def test_a_process_that_nobody_launched_is_alone(set_variables, variables):
    set_variables(**variables)
    assert find_launcher_rank() is None
    found = find_environment("cpu", "auto")
    assert (found.rank, found.world_size, found.starts) == (0, 1, 0)
    assert Trainer(accelerator="cpu", devices=1).world_size == 1


@pytest.mark.fault(27)
@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "first", "WORLD_SIZE": "2"}, "RANK=first"),
        ({"RANK": "", "WORLD_SIZE": "2"}, "RANK="),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1"),
        ({"RANK": "1.0", "WORLD_SIZE": "2"}, "RANK=1.0"),
        ({"RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE=two"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "x"}, "LOCAL_RANK=x"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2, WORLD_SIZE=2"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "http"}, "MASTER_PORT=http"),
        ({"SLURM_PROCID": "n", "SLURM_STEP_NUM_TASKS": "2"}, "SLURM_PROCID=n"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "many"}, "OMPI_COMM_WORLD_SIZE=many"),
    ],
)
def test_garbage_is_named_with_its_value(set_variables, variables, said):
    set_variables(**variables)
    with pytest.raises(PacelineError) as error:
        Trainer(accelerator="cpu")
    assert said in str(error.value)
    assert "fix: unset " in str(error.value)


@pytest.mark.fault(27)
@pytest.mark.parametrize("value", ["0", "2", "many", ""])
@pytest.mark.parametrize(("name", "missing"), [("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")])
def test_one_of_rank_and_world_size_alone_is_named_with_what_is_missing(
    set_variables, name, missing, value
):
    set_variables(**{name: value})
    with pytest.raises(PacelineError, match=f"the variable {name} is set and {missing} is not") as error:
        Trainer(accelerator="cpu")
    assert f"{name}={value}" in str(error.value)
    assert f"unset {name} to train alone" in str(error.value)


@pytest.mark.parametrize("asked", [{"devices": 4}, {"devices": 1}, {"devices": 2, "num_nodes": 2}])
def test_another_world_than_the_one_asked_for_is_an_error(set_variables, asked):
    set_variables(RANK=0, WORLD_SIZE=2, LOCAL_RANK=0, LOCAL_WORLD_SIZE=2)
    with pytest.raises(PacelineError, match="torchrun started 2 ranks") as error:
        Trainer(accelerator="cpu", **asked)
    assert "devices=2, num_nodes=1" in str(error.value)


def test_ranks_on_several_machines_must_know_where_rank_0_is(set_variables):
    set_variables(**dict(zip(OPEN_MPI, [0, 2, 0, 1], strict=True)))
    with pytest.raises(PacelineError, match="MASTER_ADDR") as error:
        find_launcher_rank()
    assert "Open MPI" in str(error.value)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("localhost", "localhost"),
        ("gpu1,gpu2", "gpu1"),
        ("gpu[07-09,12],cpu1", "gpu07"),
        ("gpu[3,5-7]", "gpu3"),
        ("gpu-a[1-2]", "gpu-a1"),
        ("node[001-128].cluster.example", "node001.cluster.example"),
        ("10.0.0.[5-8]", "10.0.0.5"),
        ("host-1.example.com,host[2-3]", "host-1.example.com"),
        ("rack[2-3]node[04-07]", "rack2node04"),
        ("rack[2-3]-[1,5],other", "rack2-1"),
    ],
)
def test_the_first_host_of_a_list_of_nodes(nodes, first):
    assert first_host(nodes) == first


def test_a_step_of_slurm_meets_on_its_first_host_at_a_port_all_ranks_know(set_variables):
    variables = dict(zip(NAMES, [1, 2, 0, "1(x2)"], strict=True))
    set_variables(**variables, SLURM_STEP_NODELIST="gpu[07-09]", SLURM_JOB_ID=123456, SLURM_STEP_ID=3)
    find_launcher_rank()
    assert os.environ["MASTER_ADDR"] == "gpu07"
    port = os.environ["MASTER_PORT"]
    assert 1024 < int(port) < 32768  # from there on are the ports of connections
    del os.environ["MASTER_PORT"], os.environ["RANK"], os.environ["WORLD_SIZE"]
    set_variables(SLURM_PROCID=0)
    find_launcher_rank()
    assert os.environ["MASTER_PORT"] == port


# -- processes that train together -------------------------------------------------------------


def start(folder: Path, variables: dict, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(JOB), ".", json.dumps(options)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=clean_environment(threads=None) | {k: str(v) for k, v in variables.items()},
    )


def finish(processes: list[subprocess.Popen]) -> list[str]:
    """What each of them printed; none is left, whatever happens."""
    try:
        return [process.communicate(timeout=SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def notes_of(folder: Path, what: str) -> list[dict]:
    return sorted(notes(folder, what), key=lambda note: (note.get("run"), note.get("rank")))


@pytest.fixture(scope="module")
def joined(tmp_path_factory, request):
    """Two processes for each launcher, with its variables only; the world left alone, then asked for."""
    options = {"trainers": [{"devices": "auto"}, {"devices": 2}]}
    slurm = SLURM | {"SLURM_JOB_ID": os.getpid() + 1, "OMP_NUM_THREADS": 1}
    folders = {}
    # Open MPI and MPICH have one parent, and so one port: one after the other.
    usual, more = [("Open MPI", OPEN_MPI, {})], [("srun", NAMES, slurm), ("MPICH", MPICH, {})]
    for at_once in (usual, more if request.config.getoption("--soak") else []):
        processes = []
        for launcher, names, more in at_once:
            folders[launcher] = tmp_path_factory.mktemp("joined")
            for rank in range(2):
                variables = dict(zip(names, [rank, 2, rank, 2], strict=True)) | more
                processes.append(start(folders[launcher], variables, **options))
        outputs = finish(processes)
        assert not any(process.returncode for process in processes), "\n".join(outputs)
    return folders


# test_slurm.py has ranks of srun by default, too.
@pytest.mark.parametrize("launcher", soaked(["srun", "Open MPI", "MPICH"], ["Open MPI"]))
def test_processes_of_a_launcher_are_one_job(joined, launcher):
    ends = notes_of(joined[launcher], "end")
    assert [(n["rank"], n["local_rank"], n["world"]) for n in ends] == [(0, 0, 2), (1, 1, 2)] * 2
    runs = [str(joined[launcher] / "runs/line" / number) for number in "1122"]
    assert [n["run"] for n in ends] == runs
    assert ends[0]["weights"] == ends[1]["weights"]
    assert len(notes_of(joined[launcher], "after fit")) == 4
    before = {n["threads"] for n in notes_of(joined[launcher], "imported")}
    counted = {1} if launcher == "srun" else {max(1, n // 2) for n in before}  # one was set, none was
    assert {n["threads"] for n in ends} == counted


@pytest.mark.fault(27)
def test_a_port_in_use_is_an_error_that_names_it(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        variables = dict(zip(NAMES, [0, 2, 0, 2], strict=True)) | SLURM | {"MASTER_PORT": port}
        options = json.dumps({"trainers": [{"devices": 2}]})
        own = {name: str(value) for name, value in variables.items()}
        outcome = run_ranks(JOB, 1, ".", options, folder=tmp_path, check=False, environment=own)
    assert outcome.codes == [1]
    assert str(port) in outcome.stdout + outcome.stderr
    assert not notes_of(tmp_path, "read")
