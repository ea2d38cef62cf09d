"""Each check of the machine, broken once."""

import os
import resource
import signal
import threading
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

from paceline.doctor import machine_checks as machine
from paceline.doctor.finding import Finding
from paceline.doctor.world_checks import check_devices, check_launcher, this_launch
from paceline.strategies.launch.environment import LauncherRank


def test_a_folder_that_can_be_written_to(tmp_path):
    found = machine.check_folder("run folder", tmp_path / "runs/deep", least=1, good=1)
    assert found.outcome == "ok"
    assert f"{tmp_path}/runs/deep" in found.found
    assert list(tmp_path.iterdir()) == []  # nothing is left, and nothing was made


def test_a_file_where_a_folder_is_needed(tmp_path):
    (tmp_path / "runs").write_text("")
    found = machine.check_folder("run folder", tmp_path / "runs/net")
    assert found.outcome == "FAILED"
    assert f"{tmp_path}/runs is a file" in found.found
    assert "remove it" in found.cure


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no folder that nobody can write to")
def test_a_folder_that_cannot_be_written_to():
    found = machine.check_folder("run folder", Path("/proc/self/runs"))
    assert found.outcome == "FAILED"
    assert "/proc/self cannot be written to: " in found.found
    assert "permission" in found.cure
    assert "run_dir" in found.cure


def test_a_folder_without_space(tmp_path):
    full = machine.check_folder("run folder", tmp_path, least=1 << 62, good=1 << 62)
    assert full.outcome == "FAILED"
    assert "free" in full.found
    assert "Checkpoint(keep=...)" in full.cure
    assert machine.check_folder("run folder", tmp_path, least=1, good=1 << 62).outcome == "warning"


def test_no_folder_for_temporary_files(tmp_path, monkeypatch):
    def none():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert machine.check_temporary_folder().found.startswith(str(tmp_path))
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(machine.tempfile, "gettempdir", none)
    found = machine.check_temporary_folder()
    assert (found.outcome, "TMPDIR=" in found.cure) == ("FAILED", True)


def test_too_few_files_for_loader_workers():
    assert machine.check_open_files(1).outcome == "ok"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        found = machine.check_open_files(100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.outcome == "FAILED"
    assert "a limit of 256 (ulimit -n)" in found.found
    assert found.cure.startswith("ulimit -n 1024")


@pytest.mark.parametrize(
    ("free", "outcome"), [(64 << 20, "FAILED"), (500_000_000, "warning"), (8_000_000_000, "ok")]
)
def test_shared_memory(free, outcome, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "space", lambda folder: (64 << 30, free))
    found = machine.check_shared_memory(2, tmp_path)
    assert found.outcome == outcome
    assert f"{tmp_path}: " in found.found
    assert ("--shm-size" in found.cure) == (outcome != "ok")


def test_shared_memory_is_for_all_ranks_of_a_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "space", lambda folder: (64 << 30, 1_500_000_000))
    outcomes = [machine.check_shared_memory(ranks, tmp_path).outcome for ranks in (1, 8, 100)]
    assert outcomes == ["ok", "warning", "FAILED"]


def test_no_shared_memory_is_no_failure(tmp_path):
    assert machine.check_shared_memory(2, tmp_path / "none").outcome == "skipped"


class Killed(Dataset):
    """What a worker dies of whose shared memory is full."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGBUS)


class Changed(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return machine.LargeSample()[0] + 1


@pytest.mark.ranks
def test_a_loader_worker_hands_over_a_large_tensor():
    assert machine.check_loader_workers(60).outcome == "ok"
    killed = machine.check_loader_workers(60, Killed())
    assert killed.outcome == "FAILED"
    assert "DataLoader worker" in killed.found
    assert "/dev/shm" in killed.cure
    changed = machine.check_loader_workers(60, Changed())
    assert (changed.outcome, "other values" in changed.found) == ("FAILED", True)


@pytest.mark.parametrize(
    ("last", "built", "outcome", "said"),
    [
        ((1010.0, 15.0), 500.0, "ok", "no jump in 10 s"),
        ((1010.0, 4.0), 500.0, "FAILED", "went back by 1 s"),
        ((1010.0, 15.0), 1100.0, "FAILED", "1 min 30 s before the time at which paceline was installed"),
        ((4610.0, 15.0), 500.0, "warning", "jumped by +3.6e+03 s"),
        ((990.0, 15.0), 500.0, "warning", "jumped by -20 s"),
    ],
)
def test_the_clock(last, built, outcome, said):
    found = machine.check_clock((1000.0, 5.0), last, built)
    assert (found.outcome, said in found.found) == (outcome, True), found
    assert bool(found.cure) == (outcome != "ok")


def test_clocks_of_ranks():
    assert machine.check_clocks_agree([10.0, 10.1]).outcome == "ok"
    found = machine.check_clocks_agree([10.0, 10.1, 72.5], "ddp")
    assert (found.outcome, found.strategy) == ("warning", "ddp")
    assert found.found == "rank 2 is 62.5 s ahead of rank 0"
    assert "chronyd" in found.cure


@pytest.mark.parametrize(
    ("variables", "outcome", "cure"),
    [
        ({}, "ok", ""),
        ({"OMP_NUM_THREADS": "2"}, "ok", ""),
        ({"OMP_NUM_THREADS": "8"}, "warning", "OMP_NUM_THREADS=2"),
        ({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "8"}, "warning", "OMP_NUM_THREADS=2"),
        ({"OMP_NUM_THREADS": "all"}, "warning", "unset OMP_NUM_THREADS"),
    ],
)
def test_threads(variables, outcome, cure):
    found = machine.check_threads(4, 8, variables)
    assert (found.outcome, found.cure) == (outcome, cure)


def test_more_ranks_than_processors():
    found = machine.check_threads(4, 2, {})
    assert (found.outcome, found.cure) == ("warning", "at most 2 ranks on this machine")


def test_a_check_that_does_not_answer_is_named():
    ends = threading.Event()
    found = machine.within(0.05, "run folder", lambda: ends.wait(60))
    ends.set()
    assert (found.check, found.outcome) == ("run folder", "FAILED")
    assert found.found == "no answer in 0.05 s"
    assert "file server" in found.cure


def test_a_check_that_breaks_is_a_finding():
    found = machine.within(10, "open files", lambda: 1 / 0)
    assert found == Finding("open files", "FAILED", "ZeroDivisionError: division by zero")


# -- the world ---------------------------------------------------------------------------------


def test_a_launcher_with_another_world():
    launched = LauncherRank(rank=0, world_size=4, local_rank=0, local_world_size=4, launcher="srun")
    found = check_launcher(2, launched)
    assert found.outcome == "FAILED"
    assert found.found == "srun started 4 ranks, 4 on this machine, and 2 are asked for"
    assert "--devices 4" in found.cure
    assert check_launcher(4, launched).outcome == "ok"
    assert check_launcher(None, launched).outcome == "ok"
    assert check_launcher(7, None).outcome == "ok"


def test_half_a_rank_in_the_environment(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    found = this_launch()
    assert (found.check, found.outcome) == ("launcher", "FAILED")
    assert "RANK is set and WORLD_SIZE is not" in found.found
    assert "unset RANK" in found.cure


def test_devices():
    found, kind, ranks = check_devices("cpu", None)
    assert (found.outcome, kind, ranks) == ("ok", "cpu", 2)
    found, _, ranks = check_devices("nothing", None)
    assert (found.outcome, ranks) == ("FAILED", 0)
    assert "there is no 'nothing' device" in found.found
    assert found.cure


def test_fewer_devices_than_are_asked_for(monkeypatch):
    monkeypatch.setattr(
        "paceline.strategies.machine.devices.accelerator_here", lambda: torch.device("cuda")
    )
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    found, _, ranks = check_devices("gpu", 8)
    assert (found.outcome, ranks) == ("FAILED", 0)
    assert "more cuda devices were asked for than there are" in found.found
    assert "--devices" in found.cure
