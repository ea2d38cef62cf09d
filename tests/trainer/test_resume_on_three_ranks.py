"""Three ranks add up in an order that depends on how gradients are laid out: a resume keeps it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paceline import Run
from paceline.strategies import Single
from paceline.trainer.verification import verify
from paceline.trainer.weights import stored_shapes

JOB = Path(__file__).with_name("resume_ranks_job.py")
SECONDS = 180
# Behind step 1, where the layout is found, behind step 2, where torch would make its own, and later.
AFTER = {"ddp": (1, 2, 15), "fsdp": (15,), "deepspeed_stage_2": (15,), "deepspeed_stage_3": (15,)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("three")
    first = [{"name": f"{s}-whole", "strategy": s} for s in AFTER]
    first += [
        {"name": f"{s}-{at}", "strategy": s, "stop_at": at, "max_epochs": 3}
        for s in AFTER
        for at in AFTER[s]
    ]
    second = [
        {k: v for k, v in case.items() if k != "stop_at"} | {"resume": "latest"} for case in first[4:]
    ]
    for cases in (first, second):
        done = subprocess.run(
            [sys.executable, str(JOB), "3", str(place), json.dumps(cases)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]
    return place


def final(folder: Path, name: str) -> dict[str, torch.Tensor]:
    checkpoint = Run(folder / name / "1").latest
    return Single().load_tensors(str(checkpoint), stored_shapes(checkpoint, verify(checkpoint)))


@pytest.mark.parametrize(("strategy", "at"), [(s, at) for s, steps in AFTER.items() for at in steps])
def test_a_resumed_run_ends_bit_identical(folder, strategy, at):
    expected, found = final(folder, f"{strategy}-whole"), final(folder, f"{strategy}-{at}")
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), f"{name}: {(found[name] - value).abs().max()}"
