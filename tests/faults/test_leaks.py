"""Many fits in one process, some cut by a signal or an error: nothing of them stays behind."""

from pathlib import Path

import pytest
from helpers.jobs import load_job
from helpers.ranks import run_cases

pytestmark = pytest.mark.launch  # for its length

JOB = Path(__file__).with_name("leaks_job.py")
FITS, ON_RANKS = 20, 14
job = load_job(JOB)


def assert_nothing_stays(found):
    for name, value in found["after"].items():
        settled = found["settled"][name]
        if name in ("tasks", "descriptors"):  # some of those of a fit close a moment later
            assert value <= settled, name
        else:
            assert value == settled, name


@pytest.mark.fault(31)
def test_twenty_fits_leave_nothing_behind(tmp_path):
    found = job.fits(FITS, tmp_path)
    assert {end: found["ends"].count(end) for end in found["ends"]} == {
        "SystemExit": 7,
        "ArithmeticError": 2,
        None: 11,
    }
    assert_nothing_stays(found)
    # torch's DataLoader installs a handler of its own for the end of its workers
    for name in ("threads", "children", "wakeup", "hooks", "on tensors", "trainers"):
        assert found["after"][name] == found["before"][name], name


@pytest.fixture(scope="module")
def on_ranks(request, tmp_path_factory):
    names = ("ddp", "fsdp") if request.config.getoption("--soak") else ("ddp",)
    cases = {name: {"count": ON_RANKS, "strategy": name} for name in names}
    return run_cases(JOB, tmp_path_factory.mktemp("ranks"), cases, one_pair=False)


@pytest.mark.fault(31)
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.soak)])
@pytest.mark.parametrize("rank", [0, 1])
def test_nor_do_fits_on_two_ranks(on_ranks, strategy, rank):
    found = on_ranks[strategy][rank]
    assert found["ends"].count("SystemExit") == 4  # one continues with a run that is done
    assert found["ends"].count(None) == 10
    assert_nothing_stays(found)
