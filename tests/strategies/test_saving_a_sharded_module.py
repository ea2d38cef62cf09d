"""What is said where a sharded parameter is saved as if it were whole: in a run, and after it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from helpers import processes

JOB = Path(__file__).with_name("saving_job.py")
PLACES = ("in a hook", "after the fit")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    work = {place: partial(processes.run, JOB, options={"place": place}) for place in PLACES}
    return processes.side_by_side(tmp_path_factory.mktemp("jobs"), work, at_once=1)


@pytest.mark.parametrize("place", PLACES)
def test_the_error_says_what_to_call(place, jobs):
    printed = jobs[place].printed()
    assert jobs[place].code not in (0, None), printed
    assert "data pointer on an invalid python storage" in printed
    assert 'fix: trainer.export(folder, "model") on all ranks' in printed
    assert "load_from_checkpoint" in printed
