"""Ray Train itself: its process group, its restarts, its reports; the numbers are those without Ray."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from helpers.processes import Outcome, notes
from helpers.ranks import forked_python, run_ranks

import paceline
from paceline import PacelineError
from paceline.common.ray_experiment import RayExperiment, current_experiment
from paceline.trainer.checkpoint.files.locate import find_checkpoint

ray = pytest.importorskip("ray")
JOB = Path(__file__).with_name("ray_job.py")
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_raylet_start_wait_time_s": "120",  # on a machine that is busy
}
pytestmark = pytest.mark.launch  # for its length


def run(folder: Path, *trainings: dict, forked: bool = False, **settings) -> Outcome:
    """Train in one cluster with each of these settings.

    Args:
        forked: Ray's workers are forks, into which it imports itself.
    """
    folder.mkdir(exist_ok=True)
    environment = QUIET | ({"WORKERS_PYTHON": forked_python()} if forked else {})
    return Outcome(folder, [sys.executable, JOB, json.dumps([*trainings] or [settings])], environment)


def printed(outcome: Outcome) -> str:
    return (outcome.folder / "out").read_text() + (outcome.folder / "err").read_text()


def samples(folder: Path) -> dict[int, list[int]]:
    """The samples of each step over all ranks, as they were read the last time."""
    found = defaultdict(list)
    for line in notes(folder, "reads"):
        found[line["step"]] += line["samples"]
    return {step: sorted(numbers) for step, numbers in found.items()}


def without_ray(folder: Path, **settings) -> Path:
    """Where two ranks have noted what they trained."""
    run_ranks(JOB, 2, json.dumps([{"devices": 2, "accelerator": "cpu"} | settings]), folder=folder)
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Two ranks without Ray."""
    return without_ray(tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def trainings(request, tmp_path_factory):
    """Three in one cluster: of ``killed``, ``continued`` and ``ends badly``, which are folders of notes.

    The second has the first one's name, the storage of the third is not on this machine.
    """
    folder = tmp_path_factory.mktemp("trainings")
    far = {"is_remote": True, "is_refused": True, "run_dir": str(folder / "runs")}
    return run(
        folder,
        {"notes": "killed", "workers": 2, "kill": [1, 8]},
        {"notes": "continued", "workers": 1, "max_epochs": 3},
        {"notes": "ends badly", "name": "far", "workers": 2, "max_failures": 0, "ends_badly": 1} | far,
        forked=not request.config.getoption("--soak"),
    )


def test_a_killed_worker_is_resumed_exactly(trainings, alone):
    folder = trainings.folder / "killed"
    begins = [line["step"] for line in notes(folder, "begins", rank=0)]
    assert begins == [0, 5], printed(trainings)
    (done,), (expected,) = notes(folder, "done"), notes(alone, "done")
    assert done["weights"] == expected["weights"]
    assert done["losses"] == expected["losses"]
    twice = {6, 7, 8}  # read before the end of rank 1, and after it
    ours, theirs = samples(folder), samples(alone)
    assert {step: sorted(set(numbers)) for step, numbers in ours.items()} == theirs
    assert all(len(ours[step]) == len(theirs[step]) for step in ours if step not in twice)

    assert Path(done["run"]) == trainings.folder / "ray" / "e" / "runs" / "n" / "1"
    (result,) = notes(folder, "result")
    assert Path(result["leads_to"]) == Path(done["run"], "checkpoints", "step-00000024")
    # At the end of each epoch, and at the end.
    assert [metrics["step"] for metrics in result["reports"]] == [12, 24, 24]
    assert result["metrics"]["val/loss"] == done["val/loss"]


def test_its_experiment_continues_with_one_worker(trainings, tmp_path):
    folder = trainings.folder / "continued"
    begins = [(line["world"], line["step"]) for line in notes(folder, "begins")]
    assert begins == [(1, 24)], printed(trainings)
    (done,), (expected,) = notes(folder, "done"), notes(without_ray(tmp_path, max_epochs=3), "done")
    assert Path(done["run"]) == trainings.folder / "ray" / "e" / "runs" / "n" / "1"
    assert done["weights"] == pytest.approx(expected["weights"], rel=0, abs=1e-12)
    (result,) = notes(folder, "result")
    assert result["metrics"]["step"] == 36
    assert find_checkpoint(result["checkpoint"]) == paceline.Run(done["run"]).latest


def test_an_error_of_a_worker_is_what_the_driver_ends_with(trainings):
    """At the end of its fit, where the other one waits for it."""
    assert (trainings.code, trainings.left) == (1, []), printed(trainings)
    text = printed(trainings)
    assert "PacelineError: at the end" in text
    assert "fix: another value" in text


def test_runs_are_in_an_absolute_folder_where_rays_storage_is_none(trainings):
    refused = notes(trainings.folder / "ends badly", "refused")
    assert len(refused) == 2, printed(trainings)
    assert all("run_dir: it is in a temporary folder of this Ray worker" in one["text"] for one in refused)
    assert (trainings.folder / "runs" / "n" / "1" / "checkpoints").is_dir()


@pytest.mark.soak
def test_an_experiment_of_the_same_name_continues_with_other_workers(tmp_path, alone):
    first = run(tmp_path / "job", workers=2, kill=[0, 18], max_failures=0)
    assert first.code == 1
    second = run(tmp_path / "job", workers=1)
    assert second.code == 0, printed(second)
    begins = [(line["world"], line["step"]) for line in second.notes("begins", rank=0)]
    assert begins[0] == (2, 0)
    assert begins[1] in [(1, 10), (1, 15)]  # the write of step 15's may have been cut off
    (done,), (expected,) = second.notes("done"), notes(alone, "done")
    assert Path(done["run"]).name == "1"
    torch.testing.assert_close(
        torch.tensor(done["weights"], dtype=torch.float64),
        torch.tensor(expected["weights"], dtype=torch.float64),
        rtol=0,
        atol=1e-12,
    )
    for epochs in (6, 6):  # more checkpoints than are kept; and a start of a complete run
        again = run(tmp_path / "job", workers=1, max_epochs=epochs)
        assert again.code == 0, printed(again)
    assert [line["step"] for line in again.notes("begins", rank=0)][2:] == [24]
    result = again.notes("result")[-1]
    assert result["metrics"]["step"] == 72
    assert find_checkpoint(result["checkpoint"]).name == "step-00000072"


@pytest.mark.soak
def test_an_error_reaches_the_driver(tmp_path):
    outcome = run(tmp_path / "job", workers=2, max_failures=0, fails=1)
    assert outcome.code == 1
    assert outcome.left == []
    text = printed(outcome)
    assert "PacelineError: on purpose" in text
    assert "fix: another value" in text


@pytest.mark.soak
def test_an_error_at_the_end_of_one_rank_does_not_hang(tmp_path):
    outcome = run(tmp_path / "job", workers=2, max_failures=0, ends_badly=1)
    assert outcome.code == 1
    assert "PacelineError: at the end" in printed(outcome)


@pytest.mark.soak
def test_a_relative_folder_needs_rays_storage_to_be_one(tmp_path):
    outcome = run(tmp_path / "job", workers=1, max_failures=0, is_remote=True)
    assert outcome.code == 1
    assert "run_dir: it is in a temporary folder of this Ray worker" in printed(outcome)

    outcome = run(tmp_path / "other", workers=1, is_remote=True, run_dir=str(tmp_path / "runs"))
    assert outcome.code == 0, printed(outcome)
    assert (tmp_path / "runs" / "n" / "1" / "checkpoints").is_dir()


def test_ray_tune_is_no_training_of_ray_train(monkeypatch):
    def refused():
        raise DeprecationWarning("`ray.train.get_context` is deprecated in a function of Ray Tune")

    monkeypatch.setattr("ray.train.get_context", refused)
    assert current_experiment() is None


def test_workers_without_a_process_group_are_refused():
    experiment = RayExperiment("/shared/ray/e", Path("/tmp/session"), workers=2)
    with pytest.raises(PacelineError, match="each would train by itself"):
        experiment.check_world(1)
    experiment.check_world(2)


def test_only_what_is_in_the_temporary_folder_is_placed():
    experiment = RayExperiment("/shared/ray/e", Path("/tmp/session"), workers=1)
    assert experiment.place(Path("/tmp/session/runs")) == Path("/shared/ray/e/runs")
    assert experiment.place(Path("/tmp/runs")) == Path("/tmp/runs")


def test_a_process_that_has_ray_and_is_no_worker():
    import ray.train

    assert ray.train.get_context
    assert current_experiment() is None
