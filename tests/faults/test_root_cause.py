"""What failed first is what a job prints last: a traceback of the user's, or a rank and its signal."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest
from helpers import processes
from helpers.pairwise import soaked

JOB = Path(__file__).with_name("failing_job.py")

RAISED = "ArithmeticError: of the user"
MORE = "full traceback, stacks and settings: runs/n/1/crash-rank-"
ADDED = (MORE, "in step ", "worker ", "while reading ")
STRATEGIES = ("fsdp", "hsdp")


def fault(place, what="raise", rank=1, **more):
    at = {"training_step": 3, "validation_step": 4, "hook": 3, "data": 14}.get(place)
    return {
        "faults": [{"place": place, "what": what, "rank": rank} | ({} if at is None else {"at": at})]
    } | more


# Each with the failing rank, and the function whose frame is the last but for those that let it happen.
RAISES = {
    "in training_step": (fault("training_step"), 1, "training_step"),
    "in a worker": (fault("data", workers=1), 1, None),
    "after fit": (fault("after"), 1, "main"),
}
BEFORE_THE_END = ["in training_step", "in a worker"]
RAISES_SOAK = {
    "in a callback": (fault("hook", rank=0), 0, "on_step_end"),
    "in validation": (fault("validation_step"), 1, "validation_step"),
    "in setup": (fault("setup"), 1, "setup"),
    "in the dataset": (fault("data", rank=0), 0, "__getitem__"),
    **{
        f"in training_step under {name}": (
            fault("training_step", trainer={"strategy": name}),
            1,
            "training_step",
        )
        for name in STRATEGIES
    },
}
DIES = {
    "killed": (fault("training_step", "kill"), 1, signal.SIGKILL),
}
LEAVES = {"with 0": (fault("training_step", "exit with 0"), 1, "ended with exit code 0 first")}
LEAVES_SOAK = {"by sys.exit": (fault("training_step", "sys.exit"), 1, "first: SystemExit: 0")}
DIES_SOAK = {
    "in C": (fault("training_step", "segfault", rank=0), 0, signal.SIGSEGV),
    "left": (fault("training_step", "exit"), 1, 3),
    **{
        f"killed under {name}": (
            fault("training_step", "kill", trainer={"strategy": name}),
            1,
            signal.SIGKILL,
        )
        for name in STRATEGIES
    },
}
MISTAKE = {"mistake": (fault("training_step", "mistake", trainer={"max_restarts": 2}), 1, None)}
UNUSUAL = ["in a worker"]


def run(folder, options, forked):
    temporary = folder / "temporary"
    temporary.mkdir(parents=True)
    return processes.run(JOB, folder, options, forked=forked, TMPDIR=str(temporary))


def started(folder, cases, forked):
    work = {name: partial(run, options=options, forked=forked) for name, (options, *_) in cases.items()}
    return processes.side_by_side(folder, work, at_once=3)


@pytest.fixture(scope="module")
def jobs(request, tmp_path_factory):
    cases = RAISES | DIES | LEAVES | MISTAKE
    if not request.config.getoption("--soak"):
        cases = {name: case for name, case in cases.items() if name not in UNUSUAL}
    return started(tmp_path_factory.mktemp("jobs"), cases, forked=True)


@pytest.fixture(scope="module")
def more_jobs(soak, tmp_path_factory):
    return started(tmp_path_factory.mktemp("more"), RAISES_SOAK | DIES_SOAK | LEAVES_SOAK, forked=False)


def table_of(job):
    """The line of each rank, and the lines after the table, without what is added to an error."""
    lines = job.errors()
    while not lines[-1] or lines[-1].startswith(ADDED):
        lines.pop()
    start = lines.index("how the ranks ended:") + 1
    return lines[start : start + 2], lines[start + 2 :]


def ended_soon(job):
    assert job.code not in (0, None), job.printed()
    assert job.left == []
    names = [path.name for path in (job.folder / "temporary").iterdir()]
    assert [name for name in names if not name.startswith("torchinductor_")] == []  # torch's own cache
    assert "stopping at the end of this step" not in job.printed()
    logs = [path.read_text() for path in job.folder.glob("runs/n/1/log*.txt")]
    assert logs
    assert not [log for log in logs if "stopping at the end of this step" in log]


def raises(job, rank, function):
    ended_soon(job)
    assert job.code == 1
    lines, last = table_of(job)
    assert [line.split(":")[0].split(" ended")[0].split(" was")[0] for line in lines] == [
        "  rank 0",
        "  rank 1",
    ]
    what = (
        RAISED if function is not None else "ArithmeticError: Caught ArithmeticError in DataLoader worker"
    )
    assert lines[rank].startswith(f"  rank {rank} ended with exit code 1 first: {what}")
    assert "first" not in lines[1 - rank].partition(":")[0]
    text = "\n".join(last)
    assert last[-1].strip() == RAISED, job.printed()
    assert text.count("Traceback (most recent call last)") == 1
    assert text.count(RAISED) == 1
    if function is None:
        assert "DataLoader worker" in text
    else:
        assert "\n".join(job.errors()).count(RAISED) == 2  # in the table, and last
        names = [line.rpartition(" in ")[2] for line in last if line.startswith("  File ")]
        assert names[-3:] == [function, "meet", "fail"]
    ours = ("/trainer/", "/strategies/", "/callbacks/", "site-packages")
    assert not [line for line in last if line.startswith("  File ") and any(part in line for part in ours)]


@pytest.mark.fault(18)
@pytest.mark.parametrize("name", soaked(BEFORE_THE_END, BEFORE_THE_END[:1]))
def test_the_users_traceback_is_printed_last(jobs, name):
    raises(jobs[name], *RAISES[name][1:])


@pytest.mark.fault(18)
def test_the_traceback_of_what_fails_after_fit_is_printed_last(jobs):
    raises(jobs["after fit"], *RAISES["after fit"][1:])


@pytest.mark.fault(18)
@pytest.mark.parametrize("name", RAISES_SOAK)
def test_the_users_traceback_is_printed_last_wherever_it_is(more_jobs, name):
    raises(more_jobs[name], *RAISES_SOAK[name][1:])


def dies(job, rank, how):
    ended_soon(job)
    dead = isinstance(how, signal.Signals)
    said = f"signal {how.name}" if dead else f"exit code {how}"
    assert job.code == (128 + how if dead else how)
    lines, last = table_of(job)
    assert lines[rank] == f"  rank {rank} ended with {said} first"
    assert last[-1] == f"rank {rank} ended with {said}; the others were stopped", job.printed()


@pytest.mark.fault(18)
@pytest.mark.parametrize("name", DIES)
def test_a_rank_that_dies_is_named_last_with_its_signal(jobs, name):
    dies(jobs[name], *DIES[name][1:])


@pytest.mark.fault(18)
@pytest.mark.parametrize("name", DIES_SOAK)
def test_a_rank_that_dies_is_named_last_however_it_does(more_jobs, name):
    dies(more_jobs[name], *DIES_SOAK[name][1:])


@pytest.mark.fault(18, 32)
def test_a_mistake_is_printed_once(jobs):
    job = jobs["mistake"]
    ended_soon(job)
    _, last = table_of(job)
    assert last[-2:] == ["PacelineError: a mistake of the user", "  fix: make none"], job.printed()
    assert "\n".join(job.errors()).count("fix: make none") == 1
    assert len(job.notes("meets")) == 1
    assert "starting again" not in job.printed()


@pytest.mark.fault(18)
@pytest.mark.parametrize("name", soaked(BEFORE_THE_END, BEFORE_THE_END[:1]))
def test_on_exception_is_called_once_on_the_rank_that_fails(jobs, name):
    _, rank, function = RAISES[name]
    printed = jobs[name].notes("exception", rank=rank)
    assert len(printed) == 1
    assert printed[0]["said"] == RAISED or function is None
    assert len(jobs[name].notes("exception", rank=1 - rank)) <= 1


@pytest.mark.fault(18)
def test_nothing_is_reported_of_an_exception_after_fit_and_training_is_whole(jobs):
    job = jobs["after fit"]
    ended_soon(job)
    assert RAISED in job.printed()
    assert [one["step"] for one in job.notes("end")] == [8, 8]
    assert not job.notes("exception")
    assert not list(job.folder.glob("runs/n/1/crash-*"))


@pytest.mark.fault(18)
def test_a_crash_report_has_what_is_known_of_the_rank_that_fails(jobs):
    folder = jobs["in training_step"].folder / "runs/n/1"
    text = (folder / "crash-rank-1.txt").read_text()
    parts = [line.removeprefix("== ") for line in text.splitlines() if line.startswith("== ")]
    assert {"where", "error", "metrics", "configuration", "environment", "stacks"} <= set(parts)
    assert jobs["in training_step"].errors()[-1].startswith(f"{MORE}1.txt")
    assert not jobs["killed"].errors()[-1].startswith(MORE)
    assert RAISED in text
    assert "in training_step" in text
    assert "rank 1 of 2" in text
    assert not list((jobs["killed"].folder / "runs/n/1").glob("crash-rank-1.txt"))


def leaves(job, rank, how):
    ended_soon(job)
    lines, last = table_of(job)
    assert lines[rank].startswith(f"  rank {rank} ended with ")
    assert how in lines[rank]
    said = f"rank {rank} left before the run was over, and the others cannot continue without it"
    assert last[-2:] == [
        said,
        "  fix: no sys.exit or os._exit on one rank; trainer.stop(why) ends the run on all",
    ]
    assert "closed by peer" not in "\n".join(last)


@pytest.mark.fault(18)
def test_a_rank_that_leaves_with_exit_code_0_is_the_cause(jobs):
    leaves(jobs["with 0"], *LEAVES["with 0"][1:])


@pytest.mark.soak
@pytest.mark.fault(18)
def test_a_rank_that_calls_sys_exit_is_the_cause(more_jobs):
    leaves(more_jobs["by sys.exit"], *LEAVES_SOAK["by sys.exit"][1:])
