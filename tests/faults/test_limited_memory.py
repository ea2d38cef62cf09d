"""Memory that really runs out, under a limit of the system: batch_size="auto" finishes the run."""

import json
from pathlib import Path

import pytest
import torch
from helpers.ranks import run_ranks

pytestmark = pytest.mark.launch  # for its length

JOB = Path(__file__).with_name("limited_memory_job.py")
OPTIONS = {"enough": {}, "limited": {"limit": 200}, "auto": {"limit": 200, "batch_size": "auto"}}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    def run(options):
        folder = tmp_path_factory.mktemp("job")
        return folder, run_ranks(JOB, 1, json.dumps(options), folder=folder, check=False)

    return {name: run(options) for name, options in OPTIONS.items()}


@pytest.mark.fault(29)
def test_a_run_that_would_fail_ends_with_the_weights_of_one_that_had_enough(jobs):
    (_, limited), (folder, auto), (whole, enough) = (jobs[name] for name in ("limited", "auto", "enough"))
    assert limited.codes == [1], limited.output
    assert "can't allocate memory" in limited.stderr
    assert auto.codes == enough.codes == [0], auto.output
    assert "step 3, epoch 1: out of memory" in auto.stdout + auto.stderr
    found, expected = (torch.load(place / "weights.pt") for place in (folder, whole))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6)
