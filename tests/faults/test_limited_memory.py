"""Memory that really runs out, under a limit of the system: batch_size="auto" finishes the run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from helpers import processes

JOB = Path(__file__).with_name("limited_memory_job.py")
OPTIONS = {"enough": {}, "limited": {"limit": 200}, "auto": {"limit": 200, "batch_size": "auto"}}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    work = {name: partial(processes.run, JOB, options=one) for name, one in OPTIONS.items()}
    return processes.side_by_side(tmp_path_factory.mktemp("jobs"), work, at_once=2)


@pytest.mark.fault(29)
def test_a_run_that_would_fail_ends_with_the_weights_of_one_that_had_enough(jobs):
    assert jobs["limited"].code == 1
    assert any("can't allocate memory" in line for line in jobs["limited"].errors())
    assert jobs["auto"].code == 0, jobs["auto"].printed()
    assert "step 3, epoch 1: out of memory" in jobs["auto"].printed()
    found, expected = (torch.load(jobs[name].folder / "weights.pt") for name in ("auto", "enough"))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6)
