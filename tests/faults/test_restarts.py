"""Ranks that fail under ``max_restarts`` are started again, and end as if nothing had happened to them."""

from __future__ import annotations

import builtins
import json
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers import processes
from helpers.pairwise import soaked
from safetensors.torch import load_file

from paceline import PacelineError, Run, Trainer
from paceline.callbacks.loggers.series import read_rows
from paceline.trainer.checkpoint.files.integrity import verify

JOB = Path(__file__).with_name("failing_job.py")

RAISED = "ArithmeticError: of the user"
STRATEGIES = ("fsdp", "hsdp")
NEVER = 10**9


def fault(what, attempt, fit, rank=0, at=3):
    found = {"place": "training_step", "what": what, "rank": rank, "at": at, "fit": fit}
    return found if attempt is None else found | {"attempt": attempt}


def twice(strategy):
    """Rank 1 raises, then rank 0 is killed at a step that is drawn; after it one that runs undisturbed."""
    return {
        "faults": [fault("raise", 0, "n", rank=1), fault("kill", 1, "n", at="any")],
        "trainer": {"max_restarts": 2, "strategy": strategy},
        "fits": [{"name": "n"}, {"name": "whole"}],
    }


def alone(*faults, restarts=1, **more):
    trainer = {"devices": 1, "max_epochs": 1, "max_restarts": restarts}
    return {"faults": list(faults), "trainer": trainer, "fits": [{"name": "n"}]} | more


JOBS = {
    "ranks": twice("ddp"),
    "used up": alone(fault("raise", None, "n")),
    "stopped": alone(
        fault("raise", 0, "second", at=5),
        fault("stop the launcher", 1, "second", at=5),
        pauses={"step": 0.3, "first": 0.3},
        fits=[
            {"name": "n"},
            {"name": "second", "resume": "runs/n/1/checkpoints/step-00000004", "checkpoint": NEVER},
        ],
    ),
}
MORE_JOBS = {name: twice(name) for name in STRATEGIES} | {
    "killed": alone(fault("kill", 0, "second", at="any"), fits=[{"name": "n"}, {"name": "second"}]),
    "mistake": alone(fault("mistake", None, "n"), restarts=2),
}


def started(folder, cases, forked):
    run = partial(processes.run, JOB, forked=forked)
    work = {name: partial(run, options=options) for name, options in cases.items()}
    return processes.side_by_side(folder, work, at_once=3)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return started(tmp_path_factory.mktemp("jobs"), JOBS, forked=True)


@pytest.fixture(scope="module")
def more_jobs(soak, tmp_path_factory):
    return started(tmp_path_factory.mktemp("more"), MORE_JOBS, forked=False)


def content(run):
    """The tensors, counters and generators of the last checkpoint, and the metrics."""
    newest = Run(run).latest
    verify(newest)
    tensors = {}
    for path in newest.glob("*.safetensors"):
        tensors |= load_file(path)
    state = json.loads((newest / "state.json").read_text())
    del state["counters"]["elapsed"]
    rows = read_rows(run / "metrics.jsonl")
    timed = ("time", "perf/")
    rows = [{k: v for k, v in row.items() if not k.startswith(timed)} for row in rows]
    return tensors, (newest.name, state["counters"], state["ranks"]), rows


def same(one, other):
    tensors, state, rows = content(one)
    expected, its_state, its_rows = content(other)
    assert tensors.keys() == expected.keys()
    assert [name for name in tensors if not torch.equal(tensors[name], expected[name])] == []
    assert any(name.startswith("optim.") for name in tensors)
    assert state == its_state
    assert rows == its_rows
    assert len([row for row in rows if "train/loss" in row]) >= 8


def ends_as_if_nothing_had_happened(job):
    assert (job.code, job.left) == (0, []), job.printed()
    assert {one["attempt"] for one in job.notes("meets")} == {0, 1}
    same(job.folder / "runs/n/1", job.folder / "runs/whole/1")
    assert {one["step"] for one in job.notes("end")} == {8}


@pytest.mark.fault(32)
def test_two_ranks_that_fail_twice_end_as_if_nothing_had_happened(jobs):
    ends_as_if_nothing_had_happened(jobs["ranks"])


@pytest.mark.fault(32)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_that_share_out_their_weights_do_too(more_jobs, strategy):
    ends_as_if_nothing_had_happened(more_jobs[strategy])


@pytest.mark.fault(32)
def test_they_continue_in_their_run_folder_and_say_how_often(jobs):
    """``fit`` was not asked to resume."""
    job = jobs["ranks"]
    begun = job.notes("begins", fit="n", rank=0)
    assert [one["attempt"] for one in begun] == [0, 1, 2]
    assert {(job.folder / one["folder"]).resolve() for one in begun} == {job.folder / "runs/n/1"}
    assert [one["step"] for one in begun[:2]] == [0, 2]
    killed = job.notes("meets", attempt=1)[0]["at"]
    assert 2 <= begun[2]["step"] <= killed
    assert [path.name for path in (job.folder / "runs/n").iterdir()] == ["1"]
    log = (job.folder / "runs/n/1/log.txt").read_text()
    for number in (1, 2):
        assert f"restart {number} of at most 2" in log
        assert f"starting again, {number} of at most 2 times" in job.errors()


@pytest.mark.fault(32)
@pytest.mark.launch
@pytest.mark.parametrize("name", soaked(["stopped", "killed"], ["stopped"]))
def test_one_device_alone_does_not_train_again_what_is_done(name, request):
    job = request.getfixturevalue("jobs" if name in JOBS else "more_jobs")[name]
    assert {one["attempt"] for one in job.notes("step", fit="n")} == {0}
    assert len(job.notes("step", fit="n")) == 8
    assert {one["attempt"] for one in job.notes("step", fit="second")} == {0, 1}
    assert [one["attempt"] for one in job.notes("end", fit="n")] == [0, 1]
    assert [path.name for path in (job.folder / "runs/n").iterdir()] == ["1"]
    if name == "killed":
        assert (job.code, job.left) == (0, []), job.printed()
        assert len(job.notes("meets")) == 1
        last = job.notes("end", fit="second")[0]["folder"]  # another, if it was killed before it had saved
        same(job.folder / last, job.folder / "runs/n/1")


@pytest.mark.fault(32)
@pytest.mark.soak
def test_a_mistake_is_not_tried_again(more_jobs):
    """Nor is that of one of two ranks: test_root_cause.py."""
    job = more_jobs["mistake"]
    assert (job.code, job.left) == (1, []), job.printed()
    assert len(job.notes("meets")) == 1
    assert "PacelineError: a mistake of the user" in job.errors()
    assert "starting again" not in job.printed()


@pytest.mark.fault(32)
def test_what_fails_once_too_often_is_a_failure(jobs):
    job = jobs["used up"]
    assert (job.code, job.left) == (1, []), job.printed()
    assert [one["attempt"] for one in job.notes("meets")] == [0, 1]
    said = job.errors()
    assert [line for line in said if "starting again" in line] == ["starting again, 1 of at most 1 times"]
    after = said[said.index("starting again, 1 of at most 1 times") + 1 :]
    assert after[0] == "how the ranks ended:"
    assert after[1].startswith("  rank 0 ended with exit code 1 first: ")
    assert "in fail" in after[after.index(RAISED) - 2]
    assert not [line for line in after[after.index(RAISED) :] if line.startswith((" ", "rank"))]


@pytest.mark.fault(32)
def test_a_checkpoint_the_script_names_is_used_where_the_attempt_before_saved_none(jobs):
    begun = jobs["stopped"].notes("begins", fit="second")
    assert [(one["attempt"], one["step"]) for one in begun] == [(0, 4), (1, 4)], jobs["stopped"].printed()


@pytest.mark.fault(32)
def test_sigterm_stops_a_second_attempt_in_order(jobs):
    job = jobs["stopped"]
    assert (job.code, job.left) == (143, []), job.printed()
    assert not job.notes("end", fit="second")
    last = job.notes("step", fit="second")[-1]
    assert (last["attempt"], last["step"] < 8) == (1, True)
    folder = Path(job.notes("begins", fit="second")[-1]["folder"])
    newest = Run(job.folder / folder).latest
    verify(newest)
    assert newest.name == f"step-{last['step']:08d}"
    assert len(job.notes("begins", fit="second")) == 2


@pytest.fixture(params=["pytest would be started again", "a notebook runs in one process"])
def hindrance(request, monkeypatch):
    if "notebook" in request.param:
        monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    return request.param


@pytest.mark.fault(32)
@pytest.mark.parametrize("devices", [{"devices": 1}, {}])
def test_where_nothing_can_be_started_again_that_is_said(hindrance, devices):
    with pytest.raises(PacelineError, match=hindrance) as raised:
        Trainer(accelerator="cpu", max_restarts=1, **devices)
    assert "fix: " in str(raised.value)
    assert "max_restarts=0" in str(raised.value)
