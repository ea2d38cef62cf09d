"""Ranks on which something is due after other steps than on others still agree at the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.ranks import run_cases

JOB = Path(__file__).with_name("uneven_events_job.py")
CASES = {
    f"{kind} {remainder}": {"kind": kind, "remainder": remainder}
    for kind in ("next_due", "slower save")
    for remainder in (3, 6)
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return run_cases(JOB, tmp_path_factory.mktemp("events"), CASES, one_pair=True, seconds=120)


@pytest.mark.launch  # for its length
@pytest.mark.parametrize("case", CASES)
def test_ranks_whose_events_differ_end_together_and_evaluate_alike(found, case):
    first, second = found[case]
    assert first["step"] == second["step"]
    assert 60 < first["step"] < 120
    assert first["evaluated"] == second["evaluated"]
    assert len(first["evaluated"]) > 7
    assert first["called"] == second["called"] == [1, 1]  # in both hooks of the first step
