"""A rank that hangs is named, with the part it is in; all ranks' stacks are written, and they are ended."""

from __future__ import annotations

import json
import re
import signal
from functools import partial
from pathlib import Path

import pytest
from helpers import processes
from helpers.pairwise import soaked
from helpers.ranks import Job

JOB = Path(__file__).with_name("failing_job.py")

LONG = {"start": "60s", "first_step": "60s", "step": "60s", "validation": "60s", "save": "60s"}
SHORT = LONG | {"step": "2s", "validation": "2s", "save": "2s"}


def hangs(place, what="sleep", timeouts=SHORT, **more):
    """Options of a job in which rank 1 hangs in step 4, or at its 14th sample."""
    at = {"data": 14, "setup": None, "validation_step": 4}.get(place, 3)
    fault = {"place": place, "what": what} | ({} if at is None else {"at": at})
    return {"faults": [fault], "trainer": {"timeouts": timeouts}} | more


# -- under the launcher, and under another's -----------------------------------------------------

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
ASLEEP_ONCE = {"place": "training_step", "what": "sleep", "at": 3, "attempt": 0}
RESTARTS = {"max_restarts": 1, "timeouts": SHORT}
STARTED = {
    "asleep in training_step": (hangs("training_step"), ()),
    "asleep, then started again": ({"faults": [ASLEEP_ONCE], "trainer": RESTARTS}, ()),
}
STARTED_SOAK = {
    "stopped": (hangs("training_step", "stop"), ()),
    "asleep in a worker": (hangs("data", workers=1), ()),
    "under torchrun": (hangs("validation_step"), TORCHRUN),
    "before step 1": (hangs("setup", timeouts=LONG | {"start": "3s"}), ()),
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory, request):
    """All at once: most of what they take is waiting."""
    soaking = request.config.getoption("--soak")
    run = partial(processes.run, JOB, forked=not soaking)
    work = {
        name: partial(run, options=options, through=through)
        for name, (options, through) in (STARTED | (STARTED_SOAK if soaking else {})).items()
    }
    work["forks"] = partial(forks, soaking=soaking)
    return processes.side_by_side(tmp_path_factory.mktemp("jobs"), work, at_once=3)


def line_of(text, function):
    """The number of the line of the job that has this text, after the beginning of the function."""
    lines = JOB.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if f"def {function}(" in line or f"{function} =" in line)
    return next(i for i, line in enumerate(lines[start:], start + 1) if text in line)


SLEEPS = (
    f"failing_job.py:{line_of('time.sleep(1000)', 'HAPPENS: dict[str, Callable[[], Any]]')} in <lambda>"
)


def verdict_of(lines):
    """What the watchdog said: its lines from the first one on."""
    first = next(i for i, line in enumerate(lines) if "all ranks are ended" in line)
    return lines[first:]


@pytest.mark.fault(20)
def test_a_rank_that_sleeps_is_named_last_with_the_line_it_is_in(jobs):
    job = jobs["asleep in training_step"]
    assert (job.code, job.left) == (1, []), job.printed()
    said, first, second, stacks = job.errors()[-4:]
    assert re.fullmatch(
        r"rank 1 is late: no progress for \d+ s, and 2 s are allowed \(step\); all ranks are ended", said
    )
    assert first.startswith("  rank 0: step 4, ")
    assert second.startswith("  rank 1: step 4, in training_step, ")
    assert second.endswith(SLEEPS)
    assert stacks == "  stacks: runs/n/1/stacks"
    for rank in range(2):
        assert "failing_job.py" in stacks_of(job.folder, rank)
    assert "in fail" not in stacks_of(job.folder, 1)
    assert said in (job.folder / "runs/n/1/log.txt").read_text()


def stacks_of(folder, rank):
    return (folder / f"runs/n/1/stacks/rank-{rank}.txt").read_text()


@pytest.mark.fault(20, 32)
def test_ranks_that_are_started_again_do_not_take_the_earlier_question_for_theirs(jobs):
    job = jobs["asleep, then started again"]
    assert (job.code, job.left) == (0, []), job.printed()
    assert sum("all ranks are ended" in line for line in job.errors()) == 1
    (run,) = (job.folder / "runs").glob("*/1")
    assert not (run / "stacks").exists()
    assert "training_step" in (run / "stacks-1/rank-1.txt").read_text()


@pytest.fixture
def hung(jobs, request):
    """A job of ranks that a launcher has started, or a case of those that are forked."""
    if request.param in STARTED_SOAK:
        job = jobs[request.param]
        assert (job.code, job.left) == (1, []), job.printed()
        return job, verdict_of(job.errors())
    job = Case(*jobs["forks"][request.param])
    assert job.codes[0] == 1, job.output
    return job, job.verdict()


@pytest.mark.fault(20)
@pytest.mark.parametrize("hung", soaked(["stopped-fork", "stopped"], ["stopped-fork"]), indirect=True)
def test_a_rank_that_is_stopped_is_named(hung):
    job, said = hung
    assert said[0].startswith(("rank 1 is late: ", "rank 1 does not answer: ")), said
    assert "failing_job.py" in stacks_of(job.folder, 0)


@pytest.mark.fault(20)
@pytest.mark.parametrize(
    "hung", soaked(["worker-fork", "asleep in a worker"], ["worker-fork"]), indirect=True
)
def test_a_rank_whose_worker_sleeps_is_named_and_no_worker_survives(hung):
    job, said = hung
    assert said[0].startswith("rank 1 is late: ")
    assert ", reading data" in said[2]
    assert len({one["pid"] for one in job.notes("reads", place="data")}) == 2
    assert {one["pid"] for one in job.notes("reads", place="data")}.isdisjoint(
        one["pid"] for one in job.notes("begins")
    )


@pytest.mark.soak
@pytest.mark.fault(20)
def test_under_another_launcher_a_rank_prints_it(jobs):
    job = jobs["under torchrun"]
    assert (job.code, job.left) == (1, []), job.printed()
    said = verdict_of(job.errors())
    assert said[0].startswith("rank 1 is late: ")
    assert "2 s are allowed (validation)" in said[0]
    assert "in validation_step" in said[2]
    assert said[2].endswith(SLEEPS)
    assert "\n".join(job.errors()).count("all ranks are ended") == 1


# -- in forks ------------------------------------------------------------------------------------

ALONE = {"devices": 1, "max_epochs": 1}
HANGS = {
    "validation": hangs("validation_step"),
    "hook": hangs("hook"),
    "data": hangs("data"),
    "save": {"arm": ["save.write", "hang", 1, 1], "trainer": {"timeouts": SHORT}},
    "start": {
        "faults": [{"place": "setup", "what": "sleep"}, {"place": "setup", "what": "nap", "rank": 0}],
        "trainer": {"timeouts": LONG | {"start": "3s"}},
    },
    "stopped-fork": hangs("training_step", "stop"),
    "worker-fork": hangs("data", workers=1),
    "outside": hangs("training_step", "hold"),
    "fsdp": hangs("training_step") | {"trainer": {"timeouts": SHORT, "strategy": "fsdp"}},
    "fsdp-validation": hangs("validation_step") | {"trainer": {"timeouts": SHORT, "strategy": "fsdp"}},
    "alone": {
        "faults": [{"place": "training_step", "what": "sleep", "rank": 0, "at": 3}],
        "trainer": ALONE | {"timeouts": SHORT},
    },
}


def patient(timeouts, devices=1, **pauses):
    samples = 40 if "validation" in pauses else 4
    return {
        "pauses": pauses,
        "val_samples": samples,
        "trainer": {"devices": devices, "max_epochs": 1, "checkpoint": 10**9, "timeouts": timeouts},
    }


MOVES = {  # what takes long here, and whether it is ended
    "first-step": (patient(SHORT, first=4), False),
    "first-step-late": (patient(LONG | {"first_step": "1s"}, first=4), True),
    "long-validation": (patient(SHORT, validation=0.2), False),
    "long-batch": (patient(SHORT, validation=6), True),
    "slow-steps": (patient(SHORT, step=0.5), False),
    "never": (patient(False, devices=2, first=4), False),
    "phase-off": (patient(SHORT | {"step": False}, step=3) | {"fits": [{"max_steps": 2}]}, False),
    "default-alone": (patient(None), False),
    "default-on-ranks": (patient(None, devices=2), False),
}


UNUSUAL = ["fsdp-validation", "first-step", "phase-off"]  # of which others show each part


def forks(folder, soaking):
    """All cases at once, on ranks without a launcher: most of what they take is waiting."""
    cases = HANGS | {name: options for name, (options, _) in MOVES.items()}
    if not soaking:
        cases = {name: options for name, options in cases.items() if name not in UNUSUAL}
    started = {}
    for name, options in cases.items():
        (folder / name).mkdir(parents=True)
        devices = options["trainer"].get("devices", 2)
        how = {"folder": folder / name, "seconds": 180, "after_a_failure": None}
        started[name] = Job(JOB, devices, json.dumps(options), **how)
    outcomes = {name: job.wait() for name, job in started.items()}
    assert [outcome.left for outcome in outcomes.values() if outcome.left] == []
    return {name: (folder / name, outcome) for name, outcome in outcomes.items()}


class Case:
    """What became of one case."""

    def __init__(self, folder, outcome):
        self.folder, self.codes = folder, outcome.codes
        self.output = [out + err for out, err in outcome.printed]

    def notes(self, what, **values):
        return processes.notes(self.folder, what, **values)

    def verdict(self):
        found = [verdict_of(text.splitlines()) for text in self.output if "all ranks are ended" in text]
        assert len(found) == 1, self.output
        return found[0]


@pytest.fixture
def case(jobs, request):
    return Case(*jobs["forks"][request.param])


DOING = {
    "validation": "in validation_step, ",
    "hook": "between two steps, ",
    "data": "reading data, ",
    "outside": None,
    "fsdp": "in training_step, ",
    "fsdp-validation": "in validation_step, ",
}


@pytest.mark.fault(20)
@pytest.mark.parametrize("case", soaked(DOING, DOING.keys() - UNUSUAL), indirect=True)
def test_where_the_late_rank_is_is_said(case):
    doing = DOING[case.folder.name]
    assert case.codes == [1, -9 if doing is None else 1], case.output
    said = case.verdict()
    assert said[0].startswith("rank 1 is late: " if doing else "rank 1 does not answer: ")
    assert "failing_job.py" in stacks_of(case.folder, 0)
    assert "failing_job.py" in stacks_of(case.folder, 1)
    if doing:
        assert said[2].startswith("  rank 1: ")
        assert doing in said[2]
        assert said[2].endswith(SLEEPS)


@pytest.mark.fault(20)
@pytest.mark.parametrize("case", ["save"], indirect=True)
def test_a_save_that_hangs_is_ended_and_nothing_of_it_is_committed(case):
    assert case.codes == [1, 1], case.output
    said = case.verdict()
    assert "2 s are allowed (" in said[0]
    assert "common/faultpoints.py" in stacks_of(case.folder, 1)
    assert not list(case.folder.glob("runs/n/1/checkpoints/step-*"))


@pytest.mark.fault(20)
@pytest.mark.parametrize("case", ["start"], indirect=True)
def test_a_rank_that_hangs_before_step_1_is_reported_where_there_is_no_folder_yet(case):
    """It tells it itself: its time is up first. The rank that tells it prints the stacks."""
    assert set(case.codes) <= {1, -signal.SIGKILL}, case.output
    assert not list(case.folder.glob("runs/n/*"))
    assert "3 s are allowed (start)" in case.verdict()[0]
    assert case.verdict()[1].endswith(SLEEPS)
    assert "in setup" in case.output[1].partition("most recent call first")[2]


@pytest.mark.soak
@pytest.mark.fault(20)
def test_a_rank_that_hangs_before_step_1_is_the_one_that_is_named(jobs):
    """There is no run folder yet; the launcher has one."""
    job = jobs["before step 1"]
    assert (job.code, job.left) == (1, []), job.printed()
    said = verdict_of(job.errors())
    assert said[0].startswith("rank 1 is late: ")
    assert "3 s are allowed (start)" in said[0]
    assert "before step 1" in said[2]


@pytest.mark.fault(20)
@pytest.mark.parametrize("case", ["alone"], indirect=True)
def test_one_device_alone_is_watched_where_that_is_asked_for(case):
    assert case.codes == [1], case.output
    said = case.verdict()
    assert re.match(r"(the run|rank 0) is stuck: no progress for ", said[0])
    assert said[1].startswith("  rank 0: step 4, in training_step, ")
    assert said[1].endswith(SLEEPS)
    assert "failing_job.py" in stacks_of(case.folder, 0)


@pytest.mark.fault(20)
@pytest.mark.parametrize("case", soaked(MOVES, MOVES.keys() - UNUSUAL), indirect=True)
def test_only_what_makes_no_progress_is_ended(case):
    _, ended = MOVES[case.folder.name]
    assert case.codes == [int(ended)] * len(case.codes), case.output
    assert bool(case.notes("end")) == (not ended)
    assert ["all ranks are ended" in text for text in case.output] == [ended] * len(case.output)
    assert list(case.folder.glob("runs/n/1/stacks")) == [case.folder / "runs/n/1/stacks"] * ended


@pytest.mark.fault(20)
@pytest.mark.parametrize(
    ("case", "watched"),
    [("default-alone", False), ("never", False), ("default-on-ranks", True), ("slow-steps", True)],
    indirect=["case"],
)
def test_who_is_watched(case, watched):
    """By default the ranks of a job; a run that nobody watches has no thread for it."""
    begun = case.notes("begins")
    assert begun
    assert {"watchdog" in one["threads"] for one in begun} == {watched}
