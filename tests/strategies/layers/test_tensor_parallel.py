"""Layers that are split over ranks: the same numbers as on one device, and errors that name the mistake."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from helpers.checkpoints import assert_same_tensors, stored_tensors
from helpers.ranks import run_ranks

from paceline import Run

pytestmark = pytest.mark.launch  # for its length
JOB = Path(__file__).with_name("tensor_job.py")
TWO, FOUR = {"strategy": "fsdp", "options": {"tensor": 2}}, {"strategy": "fsdp", "options": {"tensor": 4}}
HYBRID = {"strategy": "hsdp", "options": {"tensor": 2, "replicate": 2}}
RECOMPUTED = {"strategy": "fsdp", "options": {"tensor": 2, "activation_checkpointing": True}}
OFFLOADED = {"strategy": "fsdp", "options": {"tensor": 2, "cpu_offload": True}}
# What is trained in float64, with clipping, and two micro-batches that are accumulated in each step.
KINDS = {
    "adamw": {"action": "predict", "throughput": True},
    "weighted": {"model": {"weighted": True}},
    "sgd-value": {"model": {"optimizer": "sgd"}, "clip": None, "clip_grad_value": 0.01},
    "unclipped": {"clip": None, "nonfinite": "ignore"},
    "unguarded": {"nonfinite": "ignore"},
    "muon": {"model": {"optimizer": "muon"}},
    "tied": {"model": {"tied": True}},
    "meta": {"model": {"meta": True}},
    "ema": {"ema": 0.9},
    "dropout": {"model": {"dropout": 0.3}, "every": 2},  # and resumed from there
    "gathered": {"model": {"gathered": True, "batch_norm": True}, "steps": 2, "sync_batchnorm": True},
    "manual": {"model": {"manual": True}, "steps": 2, "clip": None},
}
WHOLE = {"gathered", "manual"}  # a step is one micro-batch
USUAL = [  # ranks, strategy, plan, kind; four ranks, in two groups, where that decides: the others are slow
    (2, "TWO", "layers", "adamw"),
    (2, "TWO", "layers", "dropout"),  # ranks of a group draw alike, and so as one device
    (2, "TWO", "vocabulary", "tied"),
    (2, "TWO", "loss", "unguarded"),
    (2, "TWO", "vocabulary", "sgd-value"),
    (2, "TWO", "layers", "manual"),
    (2, "TWO", "layers", "meta"),
    (2, "RECOMPUTED", "sequence", "adamw"),
    (2, "OFFLOADED", "layers", "adamw"),
    (4, "TWO", "layers", "adamw"),
    (4, "TWO", "layers", "gathered"),
    (4, "TWO", "sequence", "weighted"),
    (4, "FOUR", "layers", "ema"),
    (4, "HYBRID", "layers", "muon"),
]
CASES = [
    *USUAL,
    (2, "TWO", "sequence", "weighted"),
    (2, "TWO", "sequence", "ema"),
    (4, "TWO", "sequence", "adamw"),
    (4, "TWO", "sequence", "unclipped"),
    (4, "TWO", "loss", "weighted"),
    (4, "TWO", "vocabulary", "sgd-value"),
    (4, "TWO", "vocabulary", "tied"),
    (4, "TWO", "layers", "muon"),
    (4, "TWO", "layers", "meta"),
    (4, "TWO", "layers", "manual"),
    (4, "TWO", "layers", "ema"),
    (4, "FOUR", "sequence", "weighted"),
    (4, "HYBRID", "sequence", "adamw"),
    (4, "HYBRID", "layers", "weighted"),
    (4, "RECOMPUTED", "sequence", "adamw"),
    (4, "OFFLOADED", "layers", "adamw"),
]
MISTAKES = {  # the model, and what is said
    "without-norms": ({}, "each has computed with a part of the sequence"),
    "without-norms-zero": ({"plan": "without-norms", "zero": True}, "each has computed with a part"),
    "half-of-a-tie": ({"tied": True}, "splits parameters that are tied"),
    "nothing": ({}, "splits no parameter"),
    "misspelt": ({}, "Parallelize plan key 'heads' could not be resolved"),
    "new-layer": ({}, "puts new layers into the module"),
}


def title(ranks: int, strategy: str, plan: str, kind: str) -> str:
    return f"{ranks}-{strategy}-{plan}-{kind}"


def case(ranks: int, strategy: str, plan: str, kind: str) -> dict:
    settings = dict(KINDS[kind])
    model = settings.pop("model", {})
    return globals()[strategy] | settings | {"model": model | {"plan": plan}} | in_one_piece(kind)


def alone(kind: str) -> dict:
    return {"strategy": "single"} | KINDS[kind] | in_one_piece(kind)


def in_one_piece(kind: str) -> dict:
    return {"micro_batches": 1} if kind in WHOLE else {}


@pytest.fixture(scope="session")
def trained(request, tmp_path_factory) -> Path:
    """Where all were trained: one job on one device, one on two ranks, one on four."""
    place = tmp_path_factory.mktemp("tensor")
    chosen = CASES if request.config.getoption("--soak") else USUAL
    jobs = {1: {kind: alone(kind) for kind in dict.fromkeys(about[3] for about in chosen)}}
    for ranks in (2, 4):
        jobs[ranks] = {title(*about): case(*about) for about in chosen if about[0] == ranks}
    for plan, (model, _) in MISTAKES.items():
        settings = {"model": {"plan": plan} | model, "error": True, "steps": 3}
        jobs[2][f"mistake-{plan}"] = TWO | settings
    wrong = {"error": True, "steps": 2, "model": {"plan": "sequence"}}
    jobs[2]["own-data"] = TWO | wrong | {"action": "own-data"}
    jobs[2]["skips"] = TWO | wrong | {"on_data_error": "skip:3"}
    jobs[2]["again"] = TWO | {"action": "again", "steps": 1}
    jobs[2]["otherwise"] = TWO | {"action": "otherwise", "steps": 1, "error": True}
    for ranks in (2, 4) if chosen is CASES else (2,):
        whole = title(ranks, "TWO", "layers", "dropout")
        dropout = TWO | KINDS["dropout"]
        jobs[ranks][whole] = dropout
        jobs[ranks][f"continued-{ranks}"] = dropout | {"resume": f"{whole}/1/checkpoints/step-00000002"}
        invariance = {"action": "invariance", "model": {"plan": "sequence"}}
        jobs[ranks][f"invariance-{ranks}"] = TWO | invariance
    for ranks, todo in jobs.items():
        seconds = 1200 if chosen is CASES else 400
        run_ranks(JOB, ranks, ranks, place, json.dumps(todo), folder=place, seconds=seconds)
    return place


def notes(folder: Path, name: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}-?.json"))]


@pytest.mark.parametrize(
    "about",
    [pytest.param(one, id=title(*one), marks=[] if one in USUAL else pytest.mark.soak) for one in CASES],
)
def test_equals_one_device(trained, about):
    one, many = Run(trained / about[3] / "1"), Run(trained / title(*about) / "1")
    assert_same_tensors(stored_tensors(one.latest), stored_tensors(many.latest), 1e-12)
    rows = list(zip(one.rows, many.rows, strict=True))
    assert len(rows) >= 2
    for ours, theirs in rows:
        assert theirs.keys() == ours.keys()
        for name in (name for name in ours if name != "time" and not name.startswith("perf/")):
            assert math.isclose(theirs[name], ours[name], rel_tol=1e-10, abs_tol=1e-10), name


def test_values_are_counted_once_for_each_group(trained):
    """A sum, a torchmetrics object, and what is gathered: ranks of a group have the same samples."""
    run = Run(trained / title(4, "TWO", "layers", "adamw") / "1")
    assert set(run.metrics["val/seen"].values) == {19}
    assert set(run.metrics["val/total"].values) == {19}
    assert run.metrics["train/seen"].values[:2] == [12, 12]
    found = notes(trained, title(4, "TWO", "layers", "adamw"))
    assert [note["computed"] for note in found] == [19] * 4
    assert found[0]["tokens"] == pytest.approx([5 * 8, 12 * 8])
    assert [note["ranks"] for note in found] == [[0, 2]] * 4
    assert [note["data"] for note in found] == [[0, 2], [0, 2], [1, 2], [1, 2]]


@pytest.mark.parametrize("ranks", [2, 4])
def test_predictions_are_those_of_one_device_each_once(trained, ranks):
    name = title(ranks, "TWO", "layers", "adamw")
    expected, found = (torch.load(trained / f"{n}-predictions.pt") for n in ("adamw", name))
    assert found.shape == (19, 20)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_a_resumed_run_is_bit_identical_with_dropout(trained, ranks):
    names = (title(ranks, "TWO", "layers", "dropout"), f"continued-{ranks}")
    whole, continued = (stored_tensors(Run(trained / name / "1").latest) for name in names)
    assert whole.keys() == continued.keys()
    for name, value in whole.items():
        assert torch.equal(continued[name], value), name
    if ranks == 4:  # two groups, of which each draws for itself: another model than that of one device
        lost = stored_tensors(trained / "dropout" / "1" / "checkpoints" / "step-00000004")
        assert not torch.equal(lost["model.head.weight"], whole["model.head.weight"])


def test_a_module_is_trained_again_by_another_trainer_that_splits_it_alike(trained):
    assert [len(Run(trained / "again" / n).metrics["train/loss"].values) for n in "12"] == [1, 2]
    for note in notes(trained, "otherwise"):
        assert "an earlier run has split the layers of Model otherwise" in note["error"]
        assert "tensor=1, and 2 then" in note["error"]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_check_invariance_compares_with_one_device(trained, ranks):
    found = notes(trained, f"invariance-{ranks}")
    assert [note["equal"] for note in found] == [True] * ranks, found[0]["text"]


def test_ranks_that_split_layers_must_read_the_same_samples(trained):
    for note in notes(trained, "own-data"):
        assert "ranks 0 and 1 split each layer between them, and read other data" in note["error"]
    for note in notes(trained, "skips"):
        assert "would be skipped by one of them alone" in note["error"]


@pytest.mark.parametrize("plan", MISTAKES)
def test_a_plan_that_is_wrong_is_refused_on_every_rank(trained, plan):
    found = notes(trained, f"mistake-{plan}")
    assert len(found) == 2
    for note in found:
        assert MISTAKES[plan][1] in note["error"]
    if plan.startswith("without-norms"):
        assert "blocks.0.attention_norm.weight" in found[0]["error"]
        assert "SequenceParallel()" in found[0]["error"]
    if plan == "half-of-a-tie":
        assert "embedding.weight: not split" in found[0]["error"]
