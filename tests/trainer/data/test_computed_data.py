"""Ranks that compute their samples differently are named in step 1; random draws and rounding are not."""

import json
from pathlib import Path

import pytest
from helpers.jobs import load_job
from helpers.ranks import run_ranks

JOB = Path(__file__).with_name("computed_data_job.py")
CASES = tuple(load_job(JOB).CASES)


@pytest.fixture(scope="module")
def noted(tmp_path_factory):
    """By case: the warnings, and how many steps were made."""
    folder = tmp_path_factory.mktemp("computed")
    run_ranks(JOB, 2, folder, *CASES, folder=folder, seconds=120)
    return {case: json.loads((folder / f"{case}.json").read_text()) for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_a_sample_that_is_another_one_on_each_rank_is_warned_of_once(noted, case):
    lines, steps = noted[case]
    assert steps > 0
    if not case.startswith("differ"):
        assert lines == []
        return
    assert len(lines) == (2 if case == "differ" else 1)  # of the training and of the validation
    for line in lines:
        assert "warning: sample " in line
        assert " on rank 1 is not the one that rank 0 has" in line
        assert "prepare_data" in line
