"""batch_size="auto" on ranks: one that runs out of memory has all of them started again, and is exact."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers import processes
from helpers.pairwise import soaked
from safetensors.torch import load_file

from paceline import Run
from paceline.callbacks.loggers.series import read_rows

JOB = Path(__file__).with_name("micro_batch_job.py")
STRATEGIES = ("ddp", "fsdp", "deepspeed_stage_2")
USUAL = ["ddp"]
NONE = {8: 3, 2: 1}  # by the samples of a batch, of which no one fits: how often it is halved


@pytest.fixture(scope="module")
def jobs(request, tmp_path_factory):
    soaking = request.config.getoption("--soak")
    options = {name: {"strategy": name} for name in (STRATEGIES if soaking else USUAL)}
    for batch in NONE if soaking else [2]:
        options[f"none of {batch}"] = {"strategy": "ddp", "most": 0, "batch": batch}
    run = partial(processes.run, JOB, forked=not soaking)
    work = {name: partial(run, options=one) for name, one in options.items()}
    return processes.side_by_side(tmp_path_factory.mktemp("jobs"), work, at_once=2)


def content(run):
    tensors, newest = {}, Run(run).latest
    for path in newest.glob("*.safetensors"):
        tensors |= load_file(path)
    state = json.loads((newest / "state.json").read_text())
    micro_batch = state["counters"].pop("micro_batch")
    del state["counters"]["elapsed"]
    rows = read_rows(run / "metrics.jsonl")
    rows = [{k: v for k, v in row.items() if not k.startswith(("time", "perf/"))} for row in rows]
    return tensors, (state["counters"], state["ranks"], rows), micro_batch


@pytest.mark.fault(29)
@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_the_run_ends_as_one_that_had_enough(jobs, strategy):
    job = jobs[strategy]
    assert (job.code, job.left) == (0, []), job.printed()
    found, expected = content(job.folder / "runs/auto/1"), content(job.folder / "runs/plain/1")
    assert found[0].keys() == expected[0].keys()
    assert [name for name in found[0] if not torch.equal(found[0][name], expected[0][name])] == []
    assert found[1] == expected[1]
    assert (found[2], expected[2]) == (2, 0)
    assert [path.name for path in (job.folder / "runs/auto").iterdir()] == ["1"]


@pytest.mark.fault(29)
def test_it_takes_no_restart_and_is_reported(jobs):
    job = jobs["ddp"]
    for size in (4, 2):
        assert f"starting again, with micro-batches of at most {size} samples" in job.errors()
        assert f"the ranks are started again, with micro-batches of at most {size} samples" in job.printed()
    log = (job.folder / "runs/auto/1/log.txt").read_text()
    assert "restart 2, with micro-batches of at most 2 samples" in log
    assert "global batch 16 = 8 samples x 2 ranks x 1 micro-batch" in log
    assert "global batch 16 = 2 samples x 2 ranks x 4 micro-batches" in log
    assert log.count('batch_size="auto": a rank takes 8 of its 8 samples') == 1  # it is not searched again


@pytest.mark.fault(29)
@pytest.mark.parametrize("batch", soaked(NONE, [2]))
def test_one_sample_that_does_not_fit_ends_the_job(jobs, batch):
    job = jobs[f"none of {batch}"]
    assert job.code != 0
    assert job.left == []
    assert "\n".join(job.errors()).count("starting again") == NONE[batch]
    assert any("OutOfMemoryError: planted" in line for line in job.errors())
