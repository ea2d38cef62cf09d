"""Signals at every named place, to each rank: a run stops in order and resumes as if none had come."""

import json
import os
import random
import re
import signal
import time
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from helpers.pairwise import soaked
from helpers.ranks import Job
from torch.utils.data import DataLoader

import paceline
from paceline import Trainer, TrainModule
from paceline.common.faultpoints import Fault, arm
from paceline.trainer.checkpoint.files import format as files
from paceline.trainer.checkpoint.files.integrity import verify

pytestmark = pytest.mark.launch  # for its length

JOB = Path(__file__).with_name("signals_job.py")
SOURCE = Path(paceline.__file__).parent
SECONDS = 600  # for all cases of a series on a machine that is busy
STAGES = ("validate", "test", "predict")


def places():
    """The names of all places, from the source: none can be forgotten."""
    found = set()
    for part in ("trainer", "strategies", "callbacks"):
        for path in (SOURCE / part).rglob("*.py"):
            found |= set(re.findall(r'faultpoint\(\s*f?"([^"]+)"[,)]', path.read_text()))
    assert found >= {"step.forward", "step.backward", "step.update", "step.end", "data.read"}
    # Too late for ranks to agree on: test_signals_at_the_end.py.
    return sorted({p.replace("{self.stage}", stage) for p in found for stage in STAGES} - {"end.agreed"})


class Jobs:
    """Starts jobs, each in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder

    def start(self, name, what, ranks=1, env=None, **settings):
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        options = {"folder": folder, "seconds": SECONDS, "after_a_failure": None, "environment": env}
        return Signalled(folder, Job(JOB, ranks, what, json.dumps(settings), **options))


class Signalled:
    """One or two processes that run one case, and are sent signals."""

    def __init__(self, folder, job):
        self.folder, self.job, self.processes = folder, job, job.pids

    def note(self, what, rank=0):
        """What it noted, once it has."""
        path, deadline = self.folder / f"{what}-{rank}", time.monotonic() + SECONDS
        while not path.exists():
            assert is_alive(self.processes[rank]) or path.exists(), self.printed()
            assert time.monotonic() < deadline, self.printed()
            time.sleep(0.01)
        return json.loads(path.read_text())

    def has_noted(self, what, rank=0):
        return (self.folder / f"{what}-{rank}").exists()

    def send(self, number, rank=0):
        os.kill(self.processes[rank], number)

    def ends(self):
        """How each process ended."""
        outcome = self.job.wait()
        assert outcome.left == []
        return outcome.codes

    def printed(self):
        return self.job.printed()

    def checkpoints(self):
        return sorted(path.name for path in (self.folder / "n/1/checkpoints").glob("step-*"))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return Jobs(tmp_path_factory.mktemp("signals"))


# -- at every place ------------------------------------------------------------------------------

FEW = ["start.ready", "validate.batch", "step.backward", "save.write"]
ALONE = [*FEW, "data.read"]


@pytest.fixture(scope="module")
def series(request, jobs):
    """What came of all cases: by series and name, a record of each rank."""
    every, soak = places(), request.config.getoption("--soak")
    usual = [place for place in every if not place.startswith(STAGES[1:])]

    def of(name, strategy=None, **more):
        return {"name": name, "strategy": strategy, "places": every} | more

    by_workers = ["data.read", "save.write", "validate.batch"]
    one = [
        [
            ["run", *["resumed"] * soak, "stuck", "evaluations"],
            of("one", chosen=None if soak else ALONE, often=every if soak else FEW[:1]),
        ],
        [
            ["run", "stuck", "sends"],
            of("workers", workers=2, chosen=by_workers if soak else by_workers[:1], each_send=soak),
        ],
    ]
    two = [
        [["run", "resumed", "evaluations"], of("ddp", "ddp", chosen=usual, each_rank=soak)],
        [["run"], of("fsdp", "fsdp", chosen=FEW if soak else ["save.write"])],
        [
            ["run"],
            of(
                "zero",
                "deepspeed_stage_2",
                chosen=FEW if soak else ["step.backward"],
                at_each_step=False,
            ),
        ],
    ]
    started = [jobs.start("one", "series", each=one), jobs.start("two", "series", 2, each=two)]
    found = defaultdict(list)
    for job in started:
        codes = job.ends()
        assert set(codes) == {0}, f"{codes}\n{job.printed()}"
        for path in sorted(job.folder.glob("cases-*.jsonl")):
            for record in map(json.loads, path.read_text().splitlines()):
                key = (record["series"], record.get("kind", "fit"), record.get("case", "passed"))
                found[key].append(record)
    return found


def cases(series, kind="fit"):
    """Name of the series, name of the case and what each rank has of it, of those with a fault."""
    for (name, its, case), records in series.items():
        if its == kind and "whole" not in case and case != "passed":
            yield name, case, records


@pytest.mark.fault(7, 8)
def test_every_named_place_had_its_signal_on_each_rank(series, request):
    """By turns; ``--soak`` sends it to both ranks at each place, and at each place of one device."""
    soak = request.config.getoption("--soak")
    passed = {
        place for (_, _, c), records in series.items() for r in records for place in r.get("passed", [])
    }
    assert passed >= set(places()) - {"predict.end"}  # which is validate's and test's alone
    for name, on_rank_zero in (("one", set()), ("ddp", {"save.seal on 1"})):
        counted = series[name, "fit", "passed"][0]["passed"]
        had = {(r[0]["place"], case[-1]) for n, case, r in cases(series) if n == name and "place" in r[0]}
        ranks = "0" if name == "one" else "01"
        expected = {
            (p, rank) for p in counted for rank in ranks if not {p, f"{p} on {rank}"} & on_rank_zero
        }
        if name == "one" and not soak:
            assert set(ALONE) <= {place for place, _ in expected}
            expected = {(place, "0") for place in ALONE}
        if name == "ddp" and not soak:
            assert {place for place, _ in had} == {place for place, _ in expected}
            assert had <= expected
            assert min([rank for _, rank in had].count(rank) for rank in ranks) > 5
        else:
            assert had == expected


@pytest.mark.fault(7, 8)
def test_all_ranks_stop_at_one_step_which_is_saved(series):
    for name, case, records in cases(series):
        for number, ranks in enumerate(zip(*(record["attempts"] for record in records), strict=True)):
            expected = 143 if number < records[0]["signals"] else "done"
            assert [rank["end"] for rank in ranks] == [expected] * len(ranks), (name, case)
            (step,) = {rank["step"] for rank in ranks}
            assert ranks[0]["newest"] == [f"step-{step:08d}"], (name, case)


@pytest.mark.fault(7, 8)
def test_on_one_device_it_stops_with_the_step_under_way(series):
    for name, case, records in cases(series):
        place, at = [*case.split(), ""][:2]
        step = records[0]["attempts"][0]["step"]
        if name == "one" and place.startswith("step."):
            assert step == int(at), case
        elif name == "one" and place == "data.read" and 0 < step < 6:
            assert step == int(at) - 3, case  # two of the reads were the first validation's
        elif place.startswith("start."):
            assert step == 0, (name, case)


@pytest.mark.fault(7, 8)
def test_resumed_it_ends_as_a_run_that_nothing_happened_to(series):
    for name, case, records in cases(series):
        whole = series[name, "fit", "whole stream" if "stream" in case else "whole"]
        expected, found = whole[0]["final"], records[0]["final"]
        assert found["tensors"] == expected["tensors"], (name, case)
        assert found["rows"] == expected["rows"], (name, case)
        assert found["state"] == expected["state"], (name, case)
        for mine, its in zip(records, whole, strict=True):  # no sample is read twice or left out
            seen = [step for attempt in mine["attempts"] for step in attempt["seen"]]
            assert seen == its["attempts"][0]["seen"], (name, case)


@pytest.mark.fault(8)
def test_a_finished_run_that_is_resumed_adds_nothing(series):
    for name, case, records in cases(series):
        if name == "one" and "stream" not in case:
            assert records[0]["at last"] == series["one", "fit", "whole"][0]["final"], case


@pytest.mark.fault(7, 8)
def test_the_run_is_one_that_could_differ(series):
    whole = series["ddp", "fit", "whole"][0]
    rows = whole["final"]["rows"]
    assert len({row["train/drawn"] for row in rows if "train/drawn" in row}) > 4
    assert len({row["val/loss"] for row in rows if "val/loss" in row}) == 3
    assert len({row["lr/AdamW"] for row in rows if "lr/AdamW" in row}) > 1
    seen = [samples for _, samples in whole["attempts"][0]["seen"]]
    assert len(seen) == 12
    assert seen[:6] != seen[6:]


@pytest.mark.fault(8)
@pytest.mark.parametrize("name", ["one", "workers"])
def test_data_that_does_not_come_is_not_waited_for(series, name):
    record = series[name, "fit", "stuck"][0]
    first = record["attempts"][0]
    assert (first["end"], first["asked"]) == (143, "SIGTERM received")
    assert 13 not in [sample for _, samples in first["seen"] for sample in samples]
    assert record["attempts"][1]["end"] == "done"


@pytest.mark.fault(7)
def test_validate_test_and_predict_stop_on_all_ranks(series):
    stopped = defaultdict(set)
    for kind in STAGES:
        assert {r["end"] for n in ("one", "ddp") for r in series[n, kind, "whole on 0"]} == {"done"}
        for name, case, records in cases(series, kind):
            assert [record["end"] for record in records] == [143] * len(records), (name, case)
            assert len(records) == (2 if name == "ddp" else 1)
            stopped[name].add(case)
    assert len(stopped["one"]) == 8
    assert len(stopped["ddp"]) == 16


# -- one run in a process of its own -----------------------------------------------------------

CODES = {signal.SIGTERM: 143, signal.SIGINT: -2, signal.SIGUSR1: 138, signal.SIGUSR2: 140}


@pytest.mark.fault(7)
def test_the_exit_code_says_the_signal(jobs):
    """What a shell shows of a process that SIGINT ended is 130."""
    started = {number: jobs.start(f"alone-{number:d}", "train") for number in CODES}
    for number, job in started.items():
        job.note("trains")
        job.send(number)
    for number, job in started.items():
        assert job.ends() == [CODES[number]], job.printed()
        assert job.checkpoints() == [f"step-{job.note('end')['step']:08d}"]
        assert not job.has_noted("after")
        assert "Traceback" not in job.printed()


@pytest.mark.fault(7)
def test_validate_by_itself_exits_with_143(jobs):
    started = [jobs.start(f"evaluate-{kind}", "evaluate", kind=kind) for kind in STAGES]
    for job in started:
        assert job.ends() == [143], job.printed()
        assert not job.has_noted("after")


@pytest.mark.fault(7)
@pytest.mark.parametrize("ranks", [1, 2])
def test_sigterm_to_the_whole_group_leaves_the_workers_to_the_run(jobs, ranks):
    """Two ranks read on until the step they agree on."""
    job = jobs.start(f"group-{ranks}", "train", ranks, workers=2)
    for rank in range(ranks):
        job.note("trains", rank)
    for process in job.processes:
        os.killpg(process, signal.SIGTERM)
    assert job.ends() == [143] * ranks, job.printed()
    assert job.checkpoints() == [f"step-{job.note('end')['step']:08d}"]
    assert "worker" not in job.printed()
    assert "Traceback" not in job.printed()


@pytest.fixture
def scontrol(tmp_path):
    """A program of that name that notes its arguments."""
    program, notes = tmp_path / "bin/scontrol", tmp_path / "arguments"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$RANK $@" >> {notes}\n')
    program.chmod(0o755)
    found = {"PATH": f"{program.parent}:{os.environ['PATH']}", "SLURM_JOB_ID": "77"}
    return found, lambda: notes.read_text().splitlines() if notes.exists() else []


@pytest.mark.fault(7)
@pytest.mark.parametrize("to", soaked(["one rank", "both ranks"], ["both ranks"]))
def test_sigusr1_puts_the_job_back_into_the_queue_once(jobs, scontrol, to):
    env, printed = scontrol
    job = jobs.start(f"slurm {to}", "train", 2, env=env)
    for rank in range(2):
        job.note("trains", rank)
    for rank in range(2) if to == "both ranks" else [1]:
        job.send(signal.SIGUSR1, rank)
    assert job.ends() == [138, 138], job.printed()
    assert printed() == ["0 show job 77", "0 requeue 77"]  # a cancelled job would not be requeued
    assert job.checkpoints() == [f"step-{job.note('end')['step']:08d}"]


@pytest.mark.fault(7)
def test_sigterm_of_unknown_origin_does_not_put_the_job_back_into_the_queue(jobs, scontrol):
    env, printed = scontrol
    job = jobs.start("slurm end", "train", env=env)
    job.note("trains")
    job.send(signal.SIGTERM)
    assert job.ends() == [143], job.printed()
    assert printed() == [" show job 77"]  # which says nothing


# -- a second signal -----------------------------------------------------------------------------


def signalled_twice(job, number=signal.SIGTERM, rank=0):
    """Send it to a rank that waits for ever, and once more; how it ended."""
    job.send(number, rank)
    deadline = time.monotonic() + SECONDS
    while "a second signal ends at once" not in job.job.errors(rank):
        assert time.monotonic() < deadline, job.printed()
        time.sleep(0.01)
    time.sleep(0.5)  # two in one moment are one
    assert is_alive(job.processes[rank])
    assert not job.has_noted("end", rank)
    job.send(number, rank)
    return job.job.code(rank)


@pytest.mark.fault(9)
def test_a_second_signal_ends_a_rank_inside_a_collective(jobs):
    """The other one sleeps for ever: nobody comes to meet it."""
    job = jobs.start("collective", "train", 2, stuck=["asleep", "collective"])
    job.note("stuck", 0)
    job.note("stuck", 1)
    for rank in (1, 0):
        assert signalled_twice(job, rank=rank) == 143, job.printed()


@pytest.mark.fault(9)
@pytest.mark.parametrize("number", soaked([signal.SIGTERM, signal.SIGINT], [signal.SIGTERM]))
def test_a_second_signal_ends_a_call_outside_of_python_with_its_workers(jobs, number):
    job = jobs.start(f"outside-{number:d}", "train", stuck=["outside"], workers=2, save=True)
    workers = job.note("stuck")["workers"]
    assert len(workers) == 2
    assert signalled_twice(job, number) == 128 + number, job.printed()
    deadline = time.monotonic() + SECONDS
    while left := [worker for worker in workers if is_alive(worker)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)
    for checkpoint in files.finished(job.folder / "n/1/checkpoints"):
        verify(checkpoint)
    # That of step 4 may have been committed by then, and the oldest of four deleted.
    kept = [int(name.removeprefix("step-")) for name in job.checkpoints()]
    assert kept in ([1, 2, 3], [1, 2, 3, 4], [2, 3, 4])


def is_alive(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.fault(18, 19)
@pytest.mark.parametrize(
    ("ranks", "after"),
    soaked([(1, 3), (1, 5), (2, 5), (2, 3)], [(1, 5), (2, 3)]),
)
def test_the_user_s_error_is_what_is_reported_whatever_fails_after_it(jobs, ranks, after):
    """After step 3 a checkpoint is under way, which takes both ranks."""
    job = jobs.start(f"fails-{ranks}-{after}", "fail", ranks, after=after)
    codes = job.ends()
    assert 0 not in codes
    assert None not in codes  # no rank had to be killed at the deadline
    last = ranks - 1
    assert job.note("failed", last)["error"] == "ArithmeticError"
    for rank in range(ranks):
        assert job.note("failed", rank)["calls"] == 1
        assert job.note("closed", rank)["calls"] == 1
    output = "".join(job.job.wait().printed[last])
    assert "Traceback (most recent call last)" in output
    assert "ArithmeticError: in the user's step" in output
    assert output.index("ArithmeticError") < output.index("then on_exception failed too: OSError")
    assert "then on_teardown failed too: OSError" in output


# -- what was there before -----------------------------------------------------------------------


class Line(TrainModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)

    def training_step(self, batch):
        return self.line(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture
def handlers():
    """Handlers and a descriptor of the script's own; all is put back after the test."""
    called, watched = [], (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in watched}
    mine = {number: lambda found, frame: called.append(found) for number in watched}
    ears, mouth = os.pipe()
    os.set_blocking(ears, False)
    os.set_blocking(mouth, False)
    for number, handler in mine.items():
        signal.signal(number, handler)
    other = signal.set_wakeup_fd(mouth)
    yield called, mine, ears, mouth
    signal.set_wakeup_fd(other)
    for number, handler in before.items():
        signal.signal(number, handler)
    os.close(ears)
    os.close(mouth)


@pytest.mark.fault(7)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, None])
def test_handlers_of_the_script_are_called_too_and_put_back(handlers, number):
    called, mine, ears, mouth = handlers
    trainer = Trainer(max_epochs=2, accelerator="cpu", progress=False, loggers=False)
    if number is None:
        trainer.fit(Line(), DataLoader(torch.ones(8, 1), 2))
    else:
        arm(Fault("step.backward", signal.Signals(number).name, 2))
        with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
            trainer.fit(Line(), DataLoader(torch.ones(8, 1), 2))
        arm()
        assert trainer.global_step == 2
        assert os.read(ears, 10) == bytes([number])
    assert called == ([] if number is None else [number])
    assert {number: signal.getsignal(number) for number in mine} == mine
    assert signal.set_wakeup_fd(mouth) == mouth


# -- long ----------------------------------------------------------------------------------------

BLOWS = 150  # for one device, and for two ranks


def blow(draw, job, ranks):
    """Kill or stop a random rank after a random time; whether it came in time.

    Not before both have met: without a launcher one would wait for the other.
    """
    for rank in range(ranks):
        job.note("joined", rank)
    time.sleep(draw.uniform(0, 0.6))
    number = draw.choice([signal.SIGKILL, signal.SIGTERM])
    process = job.processes[draw.randrange(ranks)]
    if not is_alive(process):
        return False
    os.kill(process, number)
    return True


@pytest.mark.fault(1, 7, 8)
@pytest.mark.parametrize("strategy", [None, "ddp"])
def test_a_run_that_is_struck_again_and_again_ends_as_if_nothing_had_been(soak, jobs, strategy):
    draw, ranks, blows, runs = random.Random(7), 2 if strategy else 1, 0, 0
    struck = [place for place in places() if not place.startswith(STAGES[1:])]
    job = jobs.start(f"whole-{strategy}", "attempt", ranks, strategy=strategy, faults=[])
    assert job.ends() == [0] * ranks, job.printed()
    whole = job.note("done")["final"]
    while blows < BLOWS:
        runs += 1
        name = f"soak-{strategy}-{runs}"
        while not (jobs.folder / name / "done-0").exists():
            what, at = draw.choice(["SIGKILL", "SIGTERM"]), draw.randint(1, 6)
            fault = [draw.choice(struck), what, at, draw.randrange(ranks)]
            named = draw.random() < 0.6
            for rank in range(ranks):
                (jobs.folder / name / f"joined-{rank}").unlink(missing_ok=True)
            job = jobs.start(name, "attempt", ranks, strategy=strategy, faults=[fault] * named)
            blows += named or blow(draw, job, ranks)
            assert None not in job.ends(), f"{fault}\n{job.printed()}"
        found = job.note("done")["final"]
        assert found["tensors"] == whole["tensors"], name
        rows = [dict(row) for row in dict.fromkeys(tuple(row.items()) for row in found["rows"])]
        assert rows == whole["rows"], name
    assert runs > BLOWS // 20
