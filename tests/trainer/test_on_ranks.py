"""What user code asks of the ranks, what it logs on them and what they decide, on 1, 2 and 3 real ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.environment import clean_environment
from helpers.pairwise import soaked
from helpers.ranks import run_ranks

JOB = Path(__file__).with_name("ranks_job.py")
SECONDS = 120
SAME_FOR_ALL = ["metrics", "decisions", "stop_on_one", "max_time"]
CASES = {1: SAME_FOR_ALL, 2: ["verbs", "debug", *SAME_FOR_ALL, "debug_source"], 3: ["debug", *SAME_FOR_ALL]}


class Job:
    """What a job wrote, its exit code and its output."""

    def __init__(self, folder: Path, devices: int, cases: list[str], own_launch: bool):
        self.folder, self.devices = folder, devices
        if own_launch:
            command = [sys.executable, JOB, str(devices), str(folder), *cases]
            options = {"capture_output": True, "text": True, "timeout": SECONDS}
            done = subprocess.run(command, env=clean_environment(), check=False, **options)
            self.code, self.output, self.errors = done.returncode, done.stdout, done.stderr
        else:
            options = {"folder": folder, "seconds": SECONDS, "check": False}
            found = run_ranks(JOB, devices, devices, folder, *cases, **options)
            self.code = 0 if found.codes == [0] * devices else 1
            self.output, self.errors = found.stdout, found.output

    def notes(self, case: str) -> list[dict]:
        """What each rank noted."""
        found = [self.folder / f"{case}-{rank}.json" for rank in range(self.devices)]
        assert all(path.exists() for path in found), self.errors[-3000:]
        return [json.loads(path.read_text()) for path in found]

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="session")
def job(tmp_path_factory):
    """The job of so many ranks (all its cases), or one of a case of its own; each is run once."""
    jobs: dict[tuple, Job] = {}

    def of(devices: int, *own: str, launched: bool = False) -> Job:
        key = (devices, own, launched)
        if key not in jobs:
            folder = tmp_path_factory.mktemp(f"ranks-{devices}")
            jobs[key] = Job(folder, devices, list(own or CASES[devices]), own_launch=launched)
        return jobs[key]

    return of


def close(left, right, tolerance=1e-12):
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for name in left:
            # torchmetrics' MeanMetric counts in single precision.
            close(left[name], right[name], 1e-6 if "metric_mean" in name else tolerance)
    elif isinstance(left, list):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            close(one, other, tolerance)
    elif isinstance(left, str):
        assert left == right
    else:
        assert left == pytest.approx(right, rel=0, abs=tolerance)


@pytest.mark.parametrize("devices", CASES)
def test_the_jobs_end_well(job, devices):
    assert job(devices).code == 0, job(devices).errors[-3000:]


# -- verbs ---------------------------------------------------------------------------------------


def test_each_rank_knows_its_place(job):
    assert [found["rank"] for found in job(2).notes("verbs")] == [[0, 2, True], [1, 2, False]]


def test_print_prints_once(job):
    assert job(2).output.count("this is printed once") == 1


def test_prepare_data_has_ended_everywhere_before_any_setup(job):
    lines = job(2).lines("order-data")
    assert lines[:2] == ["prepare data 0", "prepare module 0"]
    assert sorted(lines[2:]) == sorted(f"setup {who} {r} fit" for who in ("data", "module") for r in (0, 1))
    assert [line for line in lines if line.endswith("0 fit")] == ["setup data 0 fit", "setup module 0 fit"]


def test_attributes_that_prepare_data_sets_are_reported(job):
    assert "warning: prepare_data set self.vocabulary: on this rank alone" in job(2).output
    assert "self.vocabulary" not in job(1).output


@pytest.mark.parametrize("turn", range(3))
def test_main_process_first_lets_rank_0_through_first(job, turn):
    assert job(2).lines(f"order-first-{turn}") == ["0", "1"]


def test_a_barrier_waits_for_all(job):
    assert job(2).lines("order-barrier") == ["before", "before", "after", "after"]


def test_values_go_from_rank_to_rank(job):
    for found in job(2).notes("verbs"):
        assert found["gathered"] == [[0, 10], [1, 11]]
        assert found["scalars"] == [0.0, 1.0]
        assert found["broadcast"] == [{"of": 0}, [1, None]]
        assert found["tensor"] == [1.0, 1.0]
        assert found["on_zero_alone"] == [1.0, 1.0]


def test_on_rank_zero_runs_there_alone_and_tells_all(job):
    assert [f["printed"] for f in job(2).notes("verbs")] == [[{"from": 0}, [0]], [{"from": 0}, []]]


def test_an_error_on_rank_zero_is_raised_on_all(job):
    errors = [found["error"] for found in job(2).notes("verbs")]
    assert errors == [["ValueError", "the disk is full"], ["PacelineError", "the disk is full"]]


@pytest.mark.parametrize("launched", soaked([False, True], [False]), ids=["ranks", "launched"])
def test_an_error_in_main_process_first_ends_the_job_and_lets_nobody_in(job, launched):
    failed = job(2, "first_fails", launched=launched)
    assert failed.code not in (0, None)
    assert "the download broke off" in failed.errors
    assert failed.lines("entered") == ["0"]
    for found in failed.notes("first_fails"):
        with pytest.raises(ProcessLookupError):
            os.kill(found["pid"], 0)


# -- debug ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize(
    ("mistake", "odd", "usual"),
    [
        ("barrier_or_gather", "the odd barrier", "the usual gather"),
        ("another_shape", "the gather of two shapes", "the gather of two shapes"),
        ("another_dtype", "the gather of two dtypes", "the gather of two dtypes"),
    ],
)
def test_debug_names_the_rank_that_differs_and_the_line(job, devices, mistake, odd, usual):
    source = JOB.read_text().splitlines()
    places = [next(n for n, line in enumerate(source, 1) if line.endswith(f"# {w}")) for w in (odd, usual)]
    for found in job(devices).notes("debug"):
        message = found[mistake]
        assert f"got: rank {devices - 1}: " in message
        got, allowed = (line for line in message.splitlines() if JOB.name in line)
        assert f"{JOB.name}:{places[0]}" in got
        assert f"{JOB.name}:{places[1]}" in allowed


def test_debug_finds_nothing_in_a_broadcast_that_one_rank_has_the_value_of(job):
    assert [found["nothing_wrong"] for found in job(2).notes("debug")] == [None, None]


def test_debug_tells_broadcasts_from_two_sources_apart(job):
    for found in job(2).notes("debug_source"):
        assert "collective mismatch across ranks" in (found["another_source"] or "")


@pytest.mark.parametrize("devices", [2, 3])
def test_debug_changes_no_weight(job, devices):
    found = job(devices).notes("debug")
    assert all(one["with"] == one["without"] == found[0]["with"] for one in found)


# -- metrics and evaluation ----------------------------------------------------------------------


@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize(
    "what", ["rows-5", "rows-7", "validate-1", "validate-5", "validate-7", "test-5", "test-7"]
)
def test_every_value_is_that_of_one_device_on_every_rank(job, devices, what):
    (expected,) = job(1).notes("metrics")
    everyone = job(devices).notes("metrics")
    assert all(found[what] == everyone[0][what] for found in everyone)
    close(expected[what], everyone[0][what])


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("samples", [5, 7])
def test_every_sample_counts_once(job, devices, samples):
    found = job(devices).notes("metrics")[0]
    for phase, values in (("val", found[f"validate-{samples}"]), ("test", found[f"test-{samples}"])):
        assert values[f"{phase}/seen"] == samples
        assert values[f"{phase}/indices"] == sum(range(samples))
        assert values[f"{phase}/late"] == samples - 4
        assert values[f"{phase}/zero_alone"] == 3
        assert {f"{phase}/accuracy", f"{phase}/f1", f"{phase}/recall"} <= values.keys()
    assert found[f"rows-{samples}"][-1]["train/seen_epoch"] == 19


@pytest.mark.parametrize("devices", [2, 3])
def test_predictions_are_in_the_order_of_the_data_on_every_rank(job, devices):
    (expected,) = job(1).notes("metrics")
    for found in job(devices).notes("metrics"):
        assert found["predicted"] == list(range(103))
        close(expected["logits"], found["logits"])


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_predictions_of_several_dataloaders_are_one_after_the_other(job, devices):
    for found in job(devices).notes("metrics"):
        assert found["predicted_several"] == [*range(21), *range(33)]


# -- decisions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [2, 3])
def test_callbacks_and_schedules_decide_as_on_one_device(job, devices):
    (expected,) = job(1).notes("decisions")
    assert expected["ended"][0] == 20
    assert "early stopping: val/loss was best at 0.3" in expected["ended"][1]
    assert expected["rate"] == 0.025
    assert expected["best"][0] == "step-00000012"
    for found in job(devices).notes("decisions"):
        close(expected | {"pid": 0}, found | {"pid": 0})


@pytest.mark.parametrize("devices", [2, 3])
def test_a_stop_on_one_rank_stops_all_at_the_same_step_for_its_reason(job, devices):
    ended = [found["ended"] for found in job(devices).notes("stop_on_one")]
    step, reason = ended[0]
    assert 7 <= step < 10_000
    assert reason == f"enough on rank {devices - 1}"
    assert all(one == ended[0] for one in ended)


@pytest.mark.parametrize("devices", [2, 3])
def test_max_time_ends_all_ranks_at_the_same_step(job, devices):
    found = job(devices).notes("max_time")
    assert found[0]["ended"][1] == "max_time=4s reached"
    assert all(one["ended"] == found[0]["ended"] for one in found)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_checkpoints_by_time_are_written_by_all_ranks_together(job, devices):
    found = job(devices).notes("max_time")
    assert 3 <= len(found[0]["saved"]) <= 4  # two or three by their times, and one at the end
    assert all(one["saved"] == found[0]["saved"] for one in found)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_a_second_fit_has_the_whole_time_again(job, devices):
    again = [found["again"] for found in job(devices).notes("max_time")]
    assert again[0][0] > 10
    assert all(one == again[0] for one in again)
