"""A mean over tokens is that of a whole step, however its sequences lie in micro-batches and ranks."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from helpers.checkpoints import assert_same_tensors, stored_tensors
from helpers.pairwise import covering, soaked
from helpers.ranks import run_ranks

from paceline import Run

pytestmark = pytest.mark.launch  # for its length

JOB = Path(__file__).with_name("token_job.py")
SECONDS = 150
CLIP, GLOBAL = 0.02, 32
# A last step of 13 sequences, in four pieces on two ranks; and of one alone, which one of the ranks lacks.
RAGGED, LONELY = 3 * GLOBAL + 13, 3 * GLOBAL + 1
KINDS = {
    "64-sgd": {"precision": "64", "optimizer": "sgd", "samples": RAGGED},
    "64-adamw": {"precision": "64", "optimizer": "adamw", "samples": RAGGED},
    "64-lonely": {"precision": "64", "optimizer": "sgd", "samples": LONELY},
    "32-sgd": {"precision": "32", "optimizer": "sgd", "samples": RAGGED},
    "32-adamw": {"precision": "32", "optimizer": "adamw", "samples": RAGGED},
}
ZERO = [f"deepspeed_stage_{stage}" for stage in range(4)]
EXACT = ["ddp", "fsdp", "hsdp", "hsdp-copies", "LateAverage", "AtTheUpdate"]
SINGLE = ["ddp", "fsdp", "hsdp", *ZERO]
PAIRS = [(s, k) for k in KINDS for s in (EXACT if k.startswith("64") else SINGLE)]
USUAL = covering(PAIRS, each=1)


def run_job(folder: Path, devices: int, todo: dict[str, dict]) -> None:
    run_ranks(JOB, devices, devices, folder, json.dumps(todo), folder=folder, seconds=SECONDS)


@pytest.fixture(scope="session")
def one_device(tmp_path_factory):
    """One device takes each step's sequences at once."""
    folder = tmp_path_factory.mktemp("tokens-1")
    usual = {"strategy": "single", "micro": GLOBAL, "clip_grad_norm": CLIP}
    todo = {kind: usual | settings for kind, settings in KINDS.items()}
    todo["unclipped"] = todo["64-sgd"] | {"clip_grad_norm": None}
    todo["in-fours"] = todo["64-sgd"] | {"micro": 4}
    run_job(folder, 1, todo)
    return folder


@pytest.fixture(scope="session")
def two_ranks(request, tmp_path_factory):
    """Two ranks take them four at a time, in four micro-batches each."""
    folder = tmp_path_factory.mktemp("tokens-2")
    usual = {"micro": 4, "clip_grad_norm": CLIP}
    pairs = PAIRS if request.config.getoption("--soak") else USUAL
    run_job(folder, 2, {f"{s}-{k}": usual | KINDS[k] | {"strategy": s} for s, k in pairs})
    return folder


def same(one: Run, many: Run, tolerance: float) -> None:
    assert_same_tensors(stored_tensors(one.latest), stored_tensors(many.latest), tolerance)
    assert len(many.rows) == len(one.rows) == 10  # eight steps, and two epochs' means
    for left, right in zip(one.rows, many.rows, strict=True):
        assert right.keys() == left.keys()
        for name in left.keys() - {"time", "perf/samples_per_second"}:
            assert math.isclose(right[name], left[name], rel_tol=tolerance), (name, right[name], left[name])


@pytest.mark.parametrize(("strategy", "kind"), soaked(PAIRS, USUAL))
def test_two_ranks_with_accumulation_are_one_device_with_none(one_device, two_ranks, strategy, kind):
    tolerance = 1e-12 if kind.startswith("64") else 1e-6
    same(Run(one_device / kind / "1"), Run(two_ranks / f"{strategy}-{kind}" / "1"), tolerance)


def test_micro_batches_on_one_device_are_one(one_device):
    same(Run(one_device / "64-sgd" / "1"), Run(one_device / "in-fours" / "1"), 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_clipping_acts_in_every_step(one_device, kind):
    norms = json.loads((one_device / f"{kind}.json").read_text())["norms"]
    assert len(norms) == 8
    assert min(norms) > 1.5 * CLIP


def test_the_unclipped_run_is_another_one(one_device):
    clipped, whole = (
        stored_tensors(Run(one_device / name / "1").latest) for name in ("64-sgd", "unclipped")
    )
    assert max((whole[name] - clipped[name]).abs().max() for name in clipped) > 0.1


def test_the_cases_are_what_they_say(one_device, two_ranks):
    """Ragged last steps and steps of very different weight: else the comparison above would mean little."""
    run = Run(one_device / "64-sgd" / "1")
    assert [row["samples"] for row in run.rows if "train/loss_epoch" not in row][:4] == [32, 64, 96, RAGGED]
    lengths = json.loads((one_device / "64-sgd.json").read_text())["lengths"]
    assert (min(lengths), max(lengths)) == (1, 200)
    assert sorted(lengths)[len(lengths) // 2] < 0.5 * sum(lengths) / len(lengths)  # few long ones
    ranks = Run(two_ranks / "ddp-64-sgd" / "1").metrics
    assert ranks["train/tokens_epoch"].values == [float(sum(lengths))] * 2
    steps = ranks["train/tokens"].values
    assert sum(steps) == 2 * sum(lengths)
    assert max(steps) > 3 * min(steps)
    losses = run.metrics["train/loss_epoch"].values
    assert losses[1] < losses[0]
