"""Three ranks add up in an order that depends on how gradients are laid out: a resume keeps it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers.checkpoints import stored_tensors
from helpers.pairwise import soaked
from helpers.ranks import run_ranks
from safetensors import safe_open

from paceline import Run

pytestmark = pytest.mark.launch  # for its length

JOB = Path(__file__).with_name("resume_ranks_job.py")
SECONDS = 180
# After step 1, where the layout is found, step 2, where torch would make its own, and within an epoch.
CASES = [
    ("ddp", 1),
    ("ddp", 2),
    ("ddp", 15),
    ("fsdp", 15),
    ("deepspeed_stage_2", 15),
    ("deepspeed_stage_3", 15),
]
USUAL = [("ddp", 2)]  # those with running statistics are resumed within an epoch
# Running statistics are each rank's own: ddp gives rank 0's to all before each forward, fsdp does not.
CENTRED = ("ddp", "fsdp")


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory) -> Path:
    """Where runs of three ranks went through, and others resumed from the middle of each."""
    place = tmp_path_factory.mktemp("three")
    cases = [
        {"name": f"{s}-{at}", "strategy": s, "save_at": at}
        for s, at in (CASES if request.config.getoption("--soak") else USUAL)
    ]
    more = {"model": {"centred": True}, "save_at": 15}
    cases += [{"name": f"{s}-centred", "strategy": s} | more for s in CENTRED]
    on = [
        {k: v for k, v in case.items() if k != "save_at"}
        | {"name": f"{case['name']}-on", "resume": f"{case['name']}-at-{case['save_at']}"}
        for case in cases
    ]
    for part in (cases, on):
        run_ranks(JOB, 3, 3, place, json.dumps(part), folder=place, seconds=SECONDS)
    return place


def compare(folder: Path, name: str) -> None:
    expected, found = (stored_tensors(Run(folder / n / "1").latest) for n in (name, f"{name}-on"))
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), f"{key}: {(found[key] - value).abs().max()}"


@pytest.mark.parametrize(("strategy", "at"), soaked(CASES, USUAL))
def test_a_resumed_run_ends_bit_identical(folder, strategy, at):
    compare(folder, f"{strategy}-{at}")


@pytest.mark.parametrize("strategy", CENTRED)
def test_running_statistics_are_each_ranks_own(folder, strategy):
    compare(folder, f"{strategy}-centred")
    middle = stored_tensors(folder / f"{strategy}-centred-at-15")
    own = [f"own.{rank}.norm.running_mean" in middle for rank in (1, 2)]
    assert own == [True, True]


@pytest.mark.parametrize("strategy", CENTRED)
def test_a_checkpoint_holds_rank_0s_statistics(folder, strategy):
    """Not one of this rank and the next of another, as replicas are shared out."""
    for checkpoint in [
        folder / f"{strategy}-centred-at-15",
        *Run(folder / f"{strategy}-centred/1").checkpoints,
    ]:
        for path in checkpoint.glob("model-*.safetensors"):
            with safe_open(path, framework="pt") as content:
                names = [n for n in content.keys() if "running" in n]  # noqa: SIM118
            assert len(names) == (1 if path.name.startswith("model-00001") else 0)
