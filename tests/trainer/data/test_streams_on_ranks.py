"""Data that can only be iterated, on ranks: the samples of each step are those of one device."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helpers.pairwise import soaked
from helpers.ranks import run_ranks

from paceline import Run
from paceline.callbacks.loggers.series import read_rows

pytestmark = pytest.mark.launch  # for its length

JOB = Path(__file__).with_name("streams_job.py")
SIZE = 100
LIMITED = ["limited", "limited-map"]
SHARED = ["stream", "stream-workers", "stream-uneven", "sharing-workers", "keeping", "list", "generator"]
SHARED += ["mixture", "mixture-workers", "mixture-keeping", *LIMITED]
OWN = ["own-list", "own-part", "own-keeping", "own-uneven", "own-arrays"]
RESUMED = ["stream", "stream-workers", "keeping", "list", "mixture", "mixture-keeping", *OWN[:-1]]
UNEQUAL = ["ends-early", "ends-early-workers", "ends-early-list", "ends-early-val", "last-batch-smaller"]
MISTAKES = ["own-part-uneven", "one-for-rank-zero", "odd-sampler", *UNEQUAL]
# What a usual run leaves out: each is two of the others at once, or another place of the same data.
MORE = {"sharing-workers", "keeping", "mixture", "mixture-workers", "limited-map"}
MORE |= {"own-uneven", "own-arrays", "ends-early-workers", "ends-early-val"}
# Runs that are resumed on another number of ranks show three of them in any case.
LONG = pytest.mark.soak
WORLDS = [2, pytest.param(3, marks=LONG)]
IDS = [f"train/ids{power}" for power in range(4)]


def chosen(cases: list[str], *, every: bool) -> list[str]:
    return [case for case in cases if every or case not in MORE]


def by_choice(cases: list[str]) -> list:
    """As parameters of a test, those that a usual run leaves out marked."""
    return soaked(cases, chosen(cases, every=False))


@pytest.fixture(scope="module")
def job(request, tmp_path_factory):
    every = request.config.getoption("--soak")
    folders: dict[int, Path] = {}

    def of(devices: int) -> Path:
        if devices not in folders:
            folders[devices] = tmp_path_factory.mktemp(f"world{devices}")
            cases = SHARED if devices == 1 else SHARED + OWN + MISTAKES
            run_job(devices, folders[devices], chosen(cases, every=every))
        return folders[devices]

    return of


def run_job(devices: int, folder: Path, cases: list[str]) -> None:
    run_ranks(JOB, devices, devices, folder, *cases, folder=folder)


def rows(run: Run, *names: str) -> list[list[float]]:
    """The values of each row of a run's log that has them all."""
    lines = read_rows(run.folder / "metrics.jsonl")
    return [[line[n] for n in names] for line in lines if all(n in line for n in names)]


def printed(folder: Path, name: str, devices: int) -> list[dict]:
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(devices)]


@pytest.mark.parametrize("devices", WORLDS)
@pytest.mark.parametrize("case", by_choice(SHARED))
def test_each_steps_samples_and_losses_are_those_of_one_device(job, case, devices):
    alone, ours = Run(job(1) / case / "1"), Run(job(devices) / case / "1")
    found = rows(ours, *IDS)
    assert found == rows(alone, *IDS)
    epochs = 1 if case == "generator" else 2
    assert sum(row[0] for row in found) == epochs * (40 if case in LIMITED else SIZE)
    if case in LIMITED:  # batches of 4, as the loader has them
        assert [row[0] for row in found] == [24, 16] * 2
        assert {row[0] for row in rows(ours, "val/ids0")} == {20}
    for names in (["train/loss"], ["train/loss_epoch"], ["val/loss"], ["val/ids0", "val/ids3"]):
        if case == "generator" and names[0].startswith("val"):
            continue
        for mine, other in zip(rows(ours, *names), rows(alone, *names), strict=True):
            assert mine == pytest.approx(other, rel=1e-12)
    weights = [rank["weights"] for rank in printed(job(devices), case, devices)]
    assert weights[0] == pytest.approx(printed(job(1), case, 1)[0]["weights"], rel=1e-12)
    assert all(w == weights[0] for w in weights)


@pytest.mark.fault(38)
@pytest.mark.parametrize("devices", WORLDS)
@pytest.mark.parametrize("case", by_choice(OWN))
def test_parts_of_the_ranks_own_are_read_whole_and_weighed_by_their_samples(job, case, devices):
    run = Run(job(devices) / case / "1")
    size = SIZE - SIZE % devices if case == "own-keeping" else SIZE
    for epoch in range(2):
        of_epoch = [r for e, *r in rows(run, "epoch", *IDS) if e == epoch]
        for power in range(4):
            assert sum(r[power] for r in of_epoch) == sum(float(i) ** power for i in range(size))
    count = rows(run, "val/ids0", "val/ids3")[-1]
    assert count == [size, sum(float(i) ** 3 for i in range(size))]
    log = (run.folder / "log.txt").read_text()
    assert log.count("each rank reads its own part of the data") == 2  # training and validation data
    weights = [rank["weights"] for rank in printed(job(devices), case, devices)]
    assert all(w == weights[0] for w in weights)


@pytest.mark.parametrize(
    ("case", "devices"),
    [
        pytest.param(case, devices, marks=LONG if devices == 3 or case in MORE else ())
        for case in RESUMED
        for devices in (1, 2, 3)
        if devices > 1 or case not in OWN
    ],
)
def test_a_stopped_run_continues_with_the_samples_it_had_not_seen(job, case, devices):
    whole, resumed = Run(job(devices) / case / "1"), Run(job(devices) / f"{case}-stopped" / "1")
    assert rows(resumed, *IDS) == rows(whole, *IDS)
    assert rows(resumed, "train/loss_epoch") == rows(whole, "train/loss_epoch")
    ends = [printed(job(devices), name, devices)[0]["weights"] for name in (case, f"{case}-stopped")]
    assert ends[0] == ends[1]
    read_forward = "dataset is not stateful" in (resumed.folder / "log.txt").read_text()
    assert read_forward == (case in ("stream", "stream-workers", "own-part", "mixture"))


MOVED = ["stream", "keeping", "own-keeping", "mixture", "mixture-keeping"]


@pytest.fixture(scope="module")
def moved(request, tmp_path_factory):
    """Runs that were stopped on 2 ranks and resumed on 3."""
    folder = tmp_path_factory.mktemp("moved")
    cases = chosen(MOVED, every=request.config.getoption("--soak"))
    run_job(2, folder, [f"stop:{case}" for case in cases])
    run_job(3, folder, [f"resume:{case}" for case in cases])
    return folder


@pytest.mark.parametrize("case", by_choice([case for case in MOVED if case != "own-keeping"]))
def test_a_stream_continues_on_another_number_of_ranks(job, moved, case):
    found = rows(Run(moved / f"{case}-moved" / "1"), *IDS)
    assert found == rows(Run(job(1) / case / "1"), *IDS)


def test_parts_of_the_ranks_own_start_again_there_and_that_is_said(moved):
    run = Run(moved / "own-keeping-moved" / "1")
    assert "each rank's own part of the data is another one" in (run.folder / "log.txt").read_text()
    assert sum(r[1] for r in rows(run, "epoch", "train/ids0") if r[0] == 1) == SIZE - SIZE % 3


@pytest.mark.parametrize("devices", WORLDS)
@pytest.mark.parametrize(
    ("case", "what"),
    [
        ("own-part-uneven", "global_batch_size cannot be met"),
        ("one-for-rank-zero", "no batch on rank 1"),
        ("odd-sampler", "Odd gives rank 1 another order of epoch 1 than rank 0"),
    ],
)
def test_every_rank_reports_data_that_cannot_be_shared_out(job, case, what, devices):
    for rank in printed(job(devices), case, devices):
        assert what in rank["error"]


@pytest.mark.fault(38)
@pytest.mark.parametrize("devices", WORLDS)
@pytest.mark.parametrize("case", by_choice(UNEQUAL))
def test_streams_that_begin_alike_and_end_apart_are_reported_by_every_rank(job, case, devices):
    samples = [SIZE - (30 if case.startswith("ends-early") else 1) * rank for rank in range(devices)]
    if case == "ends-early-list":
        samples = [SIZE - 20 * rank for rank in range(devices)]
    for rank in printed(job(devices), case, devices):
        assert "the ranks' data begins alike and ends apart" in rank["error"]
        shortest = devices - 1
        assert f"rank {shortest}: {samples[shortest]} samples" in rank["error"], rank["error"]
        exact = case == "last-batch-smaller"
        assert ("rank 0: 100 samples" in rank["error"]) == exact
        assert bool(re.search(r"rank 0: \d+ samples or more", rank["error"])) != exact
