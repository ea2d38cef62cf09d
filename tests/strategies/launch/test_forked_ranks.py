"""Ranks that are forked by a program: what comes back, how they end. ``test_notebook.py`` is in a kernel.

The jobs are forking_job.py.
"""

import builtins
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.processes import notes
from helpers.ranks import run_ranks

from paceline import PacelineError, Trainer
from paceline.strategies import Environment
from paceline.strategies.launch import environment, launcher

pytestmark = pytest.mark.launch  # for its length

pytest.importorskip("nbclient", reason="they run where the packages of notebooks are installed")
JOB = Path(__file__).with_name("forking_job.py")
JOBS = {
    "killed": {"case": "killed"},
    "rank killed": {"case": "rank_killed"},
    "interrupted": {"case": "signalled", "number": 2},
    "terminated": {"case": "signalled", "number": 15},
    "twice": {"case": "signalled", "number": 2, "twice": True},
    "grown": {"case": "grown"},
    "printed": {"case": "printed"},
    "ddp": {"case": "brought_back", "strategy": "ddp"},
    "fsdp": {"case": "brought_back", "strategy": "fsdp", "precision": "bf16-true"},
    "hsdp": {"case": "brought_back", "strategy": "hsdp"},
    "stage 3": {"case": "brought_back", "strategy": "deepspeed_stage_3"},
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """How each program ended, and its folder. Nothing that it had started outlives any of them."""
    base = tmp_path_factory.mktemp("forked")

    def ended(name):
        (folder := base / name.replace(" ", "-")).mkdir()
        return folder, run_ranks(JOB, 1, json.dumps(JOBS[name]), folder=folder, check=False)

    with ThreadPoolExecutor(2) as pool:  # most of what they take is waiting
        return dict(zip(JOBS, pool.map(ended, JOBS), strict=True))


def one(jobs, name, what):
    folder, outcome = jobs[name]
    assert outcome.codes == [0], outcome.output
    (note,) = notes(folder, what)
    return note


def test_no_rank_outlives_a_killed_program(jobs):
    _, outcome = jobs["killed"]
    assert (outcome.codes, outcome.left) == ([-9], []), outcome.output


def test_a_rank_that_is_killed_is_named_and_the_other_ends(jobs):
    note = one(jobs, "rank killed", "failed")
    assert note["type"] == "RankFailedError"
    assert note["text"].splitlines()[-1] == "rank 1 ended with signal SIGKILL; the others were stopped"
    assert note["shown"] == note["text"].splitlines()


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [("interrupted", "KeyboardInterrupt", None), ("terminated", "SystemExit", 143)],
)
def test_a_signal_stops_the_ranks_in_order_with_a_checkpoint(jobs, name, kind, code):
    ended, left = one(jobs, name, "ended"), one(jobs, name, "left")
    assert (ended["type"], ended["code"]) == (kind, code)
    assert 2 <= ended["step"] < 160
    assert left["latest"] == f"step-{ended['step']:08d}"
    assert left["same"]  # the module has the weights of the checkpoint
    assert one(jobs, name, "restored")["handlers"]


def test_a_second_signal_ends_the_ranks_at_once(jobs):
    assert one(jobs, "twice", "ended")["type"] == "KeyboardInterrupt"
    assert one(jobs, "twice", "left")["latest"] is None
    assert one(jobs, "twice", "restored")["handlers"]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("ddp", "float32"), ("fsdp", "bfloat16"), ("hsdp", "float32"), ("stage 3", "float32")],
)
def test_the_module_and_the_trainer_are_those_of_the_ranks(jobs, name, dtype):
    note = one(jobs, name, "run")
    assert note["same"]
    assert note["tied"]
    assert note["kind"] == "Parameter"
    assert note["dtype"] == f"torch.{dtype}"
    assert note["counted"] == [4, 0]  # a callback's state comes back, other attributes do not
    assert note["folder"]
    assert note["module"]
    assert note["fits"] == [1]
    second = one(jobs, name, "second")
    assert (second["fit"], second["other"], second["step"]) == (2, True, 4)
    more = one(jobs, name, "more")
    assert (more["outputs"], more["read"]) == (8, 8)
    assert more["exported"] == ["config.json", "model.safetensors"]


def test_parts_that_only_the_ranks_have_are_named(jobs):
    note = one(jobs, "grown", "refused")
    assert "not in the model: more.weight" in note["text"]
    assert "__init__ or configure_model" in note["notes"][0]
    assert "step-00000004" in note["notes"][0]
    assert note["step"] == 4


def test_rank_0_writes_here_and_others_into_their_log(jobs):
    log = one(jobs, "printed", "log")["text"]
    ((out, err),) = jobs["printed"][1].printed
    for line in ("print on rank {}", "descriptor on rank {}", "child of rank {}"):
        assert line.format(0) in out.splitlines()
        assert line.format(1) not in out
        assert line.format(1) in log
    assert "error on rank 0" in err.splitlines()
    assert "error on rank 1" in log


def test_a_search_runs_on_the_ranks_and_returns_its_result(jobs):
    assert one(jobs, "printed", "search")["rates"] == 5


# -- whether they can be forked ------------------------------------------------------------------


@pytest.fixture
def notebook(monkeypatch):
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "0")  # so that what is set for it is put back


def test_a_notebook_forks_as_many_ranks_as_it_asks_for(notebook):
    found = environment.find_environment("cpu", 2)
    assert (found.world_size, found.starts, found.forks) == (2, 2, True)
    assert Trainer(strategy="ddp", accelerator="cpu", devices=2, run_dir=None).world_size == 2


def test_auto_is_one_device_in_a_notebook(notebook, monkeypatch):
    monkeypatch.setattr(environment, "find_ids", lambda kind, devices: [0, 1])  # devices that are not here
    assert environment.find_environment("cpu", "auto") == Environment(torch.device("cpu"))


def test_an_accelerator_that_is_in_use_is_an_error_that_says_what_to_do(notebook, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    used = SimpleNamespace(is_initialized=lambda: True, is_available=lambda: False)
    monkeypatch.setattr(torch, "get_device_module", lambda device: used)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(PacelineError, match="the accelerator is in use in this notebook already") as raised:
        Trainer(accelerator="cpu", devices=2)
    assert "restart the kernel" in str(raised.value)
    used.is_initialized = lambda: False
    assert environment.find_environment("cpu", 2).forks


def test_elsewhere_than_on_linux_ranks_are_not_forked(notebook, monkeypatch):
    monkeypatch.setattr(launcher, "sys", SimpleNamespace(platform="darwin", modules=sys.modules, argv=[]))
    with pytest.raises(PacelineError, match="safe on Linux only"):
        Trainer(accelerator="cpu", devices=2)


@pytest.mark.parametrize("settings", [{"num_nodes": 2}, {"max_restarts": 1}])
def test_machines_and_restarts_need_a_script(notebook, settings):
    with pytest.raises(PacelineError, match="a notebook runs in one process") as raised:
        Trainer(accelerator="cpu", devices=2, **settings)
    assert "as a script" in str(raised.value)
