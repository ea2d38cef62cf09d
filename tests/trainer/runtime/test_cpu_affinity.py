"""``Trainer(numa_affinity=True)``: where ranks run, what is logged, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from helpers import processes
from helpers.ranks import run_ranks
from torch.utils.data import DataLoader

from paceline import Trainer, TrainModule
from paceline.strategies.launch.cpu_topology import (
    Topology,
    deal,
    format_cpus,
    place_of_device,
    read_topology,
)
from paceline.strategies.machine import devices
from paceline.trainer.runtime import cpu_affinity

CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs Linux, and two CPUs to divide")
JOB = Path(__file__).with_name("affinity_job.py")
QUIET = {"accelerator": "cpu", "devices": 1, "progress": False, "loggers": False, "checkpoint": False}


class Net(TrainModule):
    def __init__(self, inside=lambda: None):
        super().__init__()
        self.layer, self.inside, self.seen = torch.nn.Linear(2, 1), inside, []

    def training_step(self, batch):
        self.seen.append(sorted(os.sched_getaffinity(0)))
        self.inside()
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data() -> DataLoader:
    return DataLoader(torch.ones(4, 2), 2)


# -- two real ranks ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    """What the two ranks of affinity_job.py noted."""
    folder = tmp_path_factory.mktemp("affinity")
    run_ranks(JOB, 2, folder, folder=folder)
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def shares() -> list[list[int]]:
    return [sorted(share) for share in deal(read_topology(), frozenset(CPUS), 2)]


def test_each_rank_has_other_cpus_in_training_step(ranks, shares):
    assert not set(shares[0]) & set(shares[1])
    for rank, share in zip(ranks, shares, strict=True):
        assert [step[0] for step in rank["fit"]] == [share] * 2


def test_all_threads_of_a_rank_run_on_its_cpus(ranks, shares):
    """Those of torch and of the process group, which were there before."""
    for rank, share in zip(ranks, shares, strict=True):
        assert {str(step[1]) for step in rank["fit"]} == {str([share])}


def test_torch_has_no_more_threads_than_the_rank_has_cpus(ranks, shares):
    for rank, share in zip(ranks, shares, strict=True):
        assert rank["before"][2] == len(CPUS)
        assert [step[3] for step in rank["fit"]] == [len(share)] * 2


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_loader_workers_run_on_the_cpus_of_their_rank(ranks, shares, method):
    for rank, share in zip(ranks, shares, strict=True):
        assert [step[2] for step in rank[method]] == [[share]] * 2
        for without in ("without", "again"):
            assert [step[2] for step in rank[f"{method} {without}"]] == [[CPUS]] * 2


def test_evaluations_are_pinned_too(ranks, shares):
    for rank, share in zip(ranks, shares, strict=True):
        assert [step[0] for step in rank["validate"]] == [share] * 2


@pytest.mark.parametrize(
    "when", ["after", "after validate", "after an error", "after 5", "after they differ"]
)
def test_affinity_and_threads_are_restored(ranks, when):
    for rank in ranks:
        assert rank["before"][:2] == [CPUS, [CPUS]]
        assert rank[when] == rank["before"]


def test_a_process_that_was_started_in_the_run_and_outlives_it_is_moved_back(ranks, shares):
    for rank, share in zip(ranks, shares, strict=True):
        assert rank["process"] == [share, CPUS]


def test_the_log_of_the_run_has_the_cpus_of_each_rank(ranks, shares):
    log = (Path(ranks[0]["folder"]) / "log.txt").read_text()
    for rank, share in enumerate(shares):
        line = f"numa_affinity: rank {rank} on CPUs {format_cpus(share)}, threads of torch: {len(share)}"
        assert line in log
    assert log.index("numa_affinity") < log.index("paceline ")


def test_ranks_that_ask_for_different_things_get_the_usual_error(ranks):
    for rank in ranks:
        assert "rank 1 has another Trainer(numa_affinity=...) than rank 0" in rank["differ"]


SCRIPT = """
import json, os, sys
import psutil, torch
from paceline import Trainer, TrainModule

class Net(TrainModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch):
        if self.global_step == 0:
            parent = os.sched_getaffinity(int(os.environ["TEST_LAUNCHER"]))
            mine = os.sched_getaffinity(0)
            line = json.dumps({"what": "step", "parent": sorted(parent), "mine": sorted(mine)})
            note = os.open("notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(note, (line + "\\n").encode())
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

options = {"accelerator": "cpu", "progress": False, "loggers": False, "checkpoint": False}
trainer = Trainer(numa_affinity=True, devices=2, max_epochs=1, **options)
trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(4, 2), 2))
"""


def test_the_process_that_starts_the_ranks_is_not_pinned(tmp_path, shares):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    ended = processes.run(script, tmp_path, {}, forked=True)
    assert ended.code == 0, ended.printed()
    assert ended.left == []
    notes = sorted(ended.notes("step"), key=lambda note: note["mine"])
    assert [note["mine"] for note in notes] == shares
    assert [note["parent"] for note in notes] == [CPUS] * 2


# -- one process -------------------------------------------------------------------------------


class Ranks:
    """Rank 0 of some, whose others run where it does."""

    rank = 0

    def __init__(self, world_size: int):
        self.world_size = world_size

    def all_gather(self, value):
        return [value] * self.world_size


def lines_of(world_size: int, device: str = "cpu", inside=lambda: None) -> list[tuple[str, bool]]:
    """What is logged, and whether on the console too."""
    lines = []

    def log_line(text, *, console=True):
        lines.append((text, console))

    with cpu_affinity.own_cpus(Ranks(world_size), torch.device(device), log_line):
        inside()
    return lines


@pytest.fixture(autouse=True)
def nothing_printed(monkeypatch):
    monkeypatch.setattr(cpu_affinity, "_printed", set())


def test_a_process_alone_has_all_its_cpus(capsys):
    module = Net()
    trainer = Trainer(numa_affinity=True, max_epochs=1, **QUIET)
    trainer.fit(module, data())
    assert module.seen == [CPUS] * 2
    line = f"numa_affinity: rank 0 on CPUs {format_cpus(CPUS)}, threads of torch: 1"
    assert line in (trainer.folder / "log.txt").read_text()
    assert "numa_affinity" not in capsys.readouterr().out


def test_off_nothing_is_set_or_logged(monkeypatch):
    monkeypatch.setattr(psutil.Process, "cpu_affinity", None)
    trainer = Trainer(max_epochs=1, **QUIET)
    trainer.fit(Net(), data())
    assert "numa_affinity" not in (trainer.folder / "log.txt").read_text()


@pytest.mark.parametrize("missing", ["topology", "affinity"])
def test_a_platform_without_it_is_reported_once_per_process(monkeypatch, missing, capsys):
    if missing == "topology":
        monkeypatch.setattr(cpu_affinity, "read_topology", lambda: None)
    else:
        monkeypatch.delattr(psutil.Process, "cpu_affinity")
    for _ in range(3):
        trainer = Trainer(numa_affinity=True, max_epochs=1, **QUIET)
        trainer.fit(Net(), data())
        assert "warning: numa_affinity" in (trainer.folder / "log.txt").read_text()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "numa_affinity" in line]
    assert line == "warning: numa_affinity: rank 0 is not pinned: Linux lists no CPUs under /sys"


def test_more_ranks_than_cpus_are_reported_and_not_pinned():
    count, seen = len(CPUS) + 1, []
    (line,) = lines_of(count, inside=lambda: seen.append(sorted(os.sched_getaffinity(0))))
    members = ", ".join(map(str, range(count)))
    assert line == (
        f"warning: numa_affinity: ranks {members} are not pinned: there are {count} ranks for "
        f"{len(CPUS)} CPUs ({format_cpus(CPUS)})",
        True,
    )
    assert seen == [CPUS]


def test_what_the_system_refuses_is_reported(monkeypatch):
    usual = psutil.Process.cpu_affinity

    def refuse(process, cpus=None):
        if cpus is not None:
            raise psutil.AccessDenied(process.pid)
        return usual(process)

    monkeypatch.setattr(psutil.Process, "cpu_affinity", refuse)
    (line,) = lines_of(2)
    assert line[0].startswith(f"warning: numa_affinity: ranks 0, 1 are not pinned: (pid={os.getpid()}")


def test_a_thread_that_somebody_has_pinned_keeps_its_cpus():
    """Also one with the very CPUs that the rank gets: it was not moved there."""
    mine = sorted(deal(read_topology(), frozenset(CPUS), 2)[0])
    other = sorted(set(CPUS) - set(mine))
    begun, ends, seen = threading.Barrier(3), threading.Event(), {}

    def pinned(name, cpus):
        os.sched_setaffinity(0, cpus)
        seen[name] = threading.get_native_id()
        begun.wait()
        ends.wait()

    threads = [threading.Thread(target=pinned, args=case) for case in (("mine", mine), ("other", other))]
    for thread in threads:
        thread.start()
    begun.wait()
    try:
        lines_of(2, inside=lambda: seen.update(inside=os.sched_getaffinity(seen["other"])))
        after = [sorted(os.sched_getaffinity(seen[name])) for name in ("mine", "other")]
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    assert sorted(seen["inside"]) == other
    assert after == [mine, other]


def test_what_is_changed_inside_is_not_undone():
    one = [CPUS[-1]]
    try:
        lines_of(2, inside=lambda: (os.sched_setaffinity(0, one), torch.set_num_threads(3)))
        assert sorted(os.sched_getaffinity(0)) == one
        assert torch.get_num_threads() == 3
    finally:
        os.sched_setaffinity(0, CPUS)
        torch.set_num_threads(1)


def test_an_error_inside_is_raised_as_it_is():
    def fail():
        raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        lines_of(2, inside=fail)
    assert caught.value.__context__ is None
    assert sorted(os.sched_getaffinity(0)) == CPUS


def test_a_thread_of_ones_own_can_train():
    found = []
    thread = threading.Thread(
        target=lambda: lines_of(2, inside=lambda: found.append(sorted(os.sched_getaffinity(0))))
    )
    thread.start()
    thread.join()
    assert found == [sorted(deal(read_topology(), frozenset(CPUS), 2)[0])]
    assert sorted(os.sched_getaffinity(0)) == CPUS


# -- accelerators ------------------------------------------------------------------------------


class Accelerators:
    """Stands for torch.cuda: two devices, at the addresses of the PCI bus that were given."""

    def __init__(self, *addresses: tuple[int, int, int] | None):
        self._addresses = addresses

    def get_device_properties(self, device: torch.device) -> SimpleNamespace:
        address = self._addresses[device.index]
        names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
        return SimpleNamespace(**dict(zip(names, address, strict=True)) if address else {})


def test_the_address_of_a_device_is_written_as_in_sys(monkeypatch):
    monkeypatch.setattr(torch, "get_device_module", lambda device: Accelerators((0, 0xC1, 0), None))
    assert devices.pci_address(torch.device("cuda:0")) == "0000:c1:00.0"
    assert devices.pci_address(torch.device("cuda:1")) is None  # a kind of device that has none
    monkeypatch.undo()
    assert devices.pci_address(torch.device("cpu")) is None
    assert devices.pci_address(torch.device("mps")) is None


def test_ranks_on_accelerators_share_the_cpus_of_their_node(monkeypatch, tmp_path):
    topology = Topology({0: frozenset(CPUS[1:]), 1: frozenset(CPUS[:1])}, {})
    file = tmp_path / "bus/pci/devices/0000:1b:00.0/numa_node"
    file.parent.mkdir(parents=True)
    file.write_text("1\n")
    monkeypatch.setattr(cpu_affinity, "read_topology", lambda: topology)
    monkeypatch.setattr(cpu_affinity, "place_of_device", partial(place_of_device, root=tmp_path))
    monkeypatch.setattr(torch, "get_device_module", lambda device: Accelerators((0, 0x1B, 0)))
    seen = []
    (line,) = lines_of(2, "cuda:0", lambda: seen.append(sorted(os.sched_getaffinity(0))))
    assert seen == [CPUS[:1]]
    assert line == (f"numa_affinity: ranks 0, 1 on CPUs {CPUS[0]}, threads of torch: 1", False)
