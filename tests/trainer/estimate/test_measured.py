"""The estimate against what real ranks allocate on a CPU, within 10 %.

It takes a minute, and runs with the launchers.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from helpers.ranks import run_cases, run_ranks

from paceline.strategies import Layout, make_precision
from paceline.trainer.estimate.trace import Setting, trace_step

JOB = Path(__file__).with_name("measure_job.py")
job = load_job(JOB)
pytestmark = pytest.mark.launch
WITHIN = 0.1
MODELS = ("cnn", "gpt", "vit", "frozen")
SEVERAL = ("ddp", "fsdp", "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3")
EVERY = {f"{s}-{m}": {"strategy": s, "model": m} for s in ("single", *SEVERAL) for m in MODELS} | {
    "deepspeed_stage_0-gpt": {"strategy": "deepspeed_stage_0", "model": "gpt"},
    "single-gpt-bf16": {"strategy": "single", "model": "gpt", "precision": "bf16"},
    "fsdp-gpt-bf16": {"strategy": "fsdp", "model": "gpt", "precision": "bf16"},
    "ddp-vit-bf16-true": {"strategy": "ddp", "model": "vit", "precision": "bf16-true"},
    "deepspeed_stage_2-gpt-bf16-true": {
        "strategy": "deepspeed_stage_2",
        "model": "gpt",
        "precision": "bf16-true",
    },
    "single-vit-again": {
        "strategy": "Single",
        "model": "vit",
        "options": {"activation_checkpointing": True},
    },
    "fsdp-gpt-again": {"strategy": "FSDP", "model": "gpt", "options": {"activation_checkpointing": True}},
    "fsdp-gpt-kept": {"strategy": "FSDP", "model": "gpt", "options": {"reshard_after_forward": False}},
    "fsdp-gpt-accumulates": {"strategy": "fsdp", "model": "gpt", "accumulate": 2},
    "ddp-gpt-accumulates": {"strategy": "ddp", "model": "gpt", "accumulate": 2},
    **{
        f"{s}-gpt-bf16-true-accumulates": {
            "strategy": s,
            "model": "gpt",
            "precision": "bf16-true",
            "accumulate": 2,
        }
        for s in ("single", "ddp", "fsdp", "deepspeed_stage_1", "deepspeed_stage_2")
    },
    "ddp-gpt-bf16-true-accumulates-small": {  # few CPUs multiply in bfloat16; on the others it is slow
        "strategy": "ddp",
        "model": "gpt",
        "precision": "bf16-true",
        "accumulate": 2,
        "size": 1,
    },
    "ddp-copies": {"strategy": "DDP", "model": "vit", "options": {"gradient_as_bucket_view": False}},
}
USUAL = [  # each strategy with a model, each model; accumulation in bfloat16
    "single-cnn",
    "single-frozen",
    "ddp-frozen",
    "fsdp-frozen",
    "ddp-gpt-bf16-true-accumulates-small",
    "fsdp-gpt",
    "deepspeed_stage_1-cnn",
    "deepspeed_stage_2-vit",
    "deepspeed_stage_3-gpt",
]
CASES = [pytest.param(name, marks=[] if name in USUAL else pytest.mark.soak) for name in EVERY]


@pytest.fixture(scope="session")
def measured(request, tmp_path_factory):
    """By case, what was measured on each rank."""
    folder = tmp_path_factory.mktemp("measured")
    soak = request.config.getoption("--soak")
    chosen = EVERY if soak else {name: EVERY[name] for name in USUAL}
    seconds = 1800 if soak else 240
    alone = {name: case for name, case in chosen.items() if name.startswith("single")}
    run_ranks(JOB, 1, folder, json.dumps(alone), folder=folder, seconds=seconds)
    found = {name: [one] for name, one in json.loads((folder / "found.json").read_text()).items()}
    several = {name: case for name, case in chosen.items() if name not in alone}
    return found | run_cases(JOB, folder, several, one_pair=True, seconds=seconds)


@functools.cache
def traced(name: str, size: int | None, precision: str, *setting):
    """The bytes of a model, which several strategies have with the same setting."""
    module = job.models.MODELS[name]()
    whole = Setting(torch.device("cpu"), make_precision(precision), *setting)
    return trace_step(module, job.batch_of(module, size), whole)[0]


def estimated(case: dict):
    """The strategy's account of a rank, and of its states."""
    strategy = job.strategy_of(case["strategy"], case.get("options"))
    precision = case.get("precision", "32")
    model = traced(
        case["model"],
        case.get("size"),
        precision,
        strategy.description.computes_in(make_precision(precision)),
        strategy.activations.checkpointing,
        case.get("accumulate", 1),
    )
    layout = Layout(2 if strategy.many_ranks else 1)
    return (
        strategy,
        strategy.description.rank_bytes(model, layout),
        strategy.description.states(model, layout),
    )


@pytest.mark.parametrize("name", CASES)
def test_the_estimate_is_within_10_percent_of_what_is_allocated(measured, name):
    strategy, held, states = estimated(EVERY[name])
    for rank in measured[name]:
        assert held.total == pytest.approx(rank["peak"], rel=WITHIN)
        assert states.optimizer == pytest.approx(rank["optimizer"], rel=WITHIN)
        partitioned = strategy.name.startswith("deepspeed")
        if not partitioned:
            assert states.gradients == pytest.approx(rank["gradients"], rel=WITHIN)
        if not (partitioned and strategy.stage == 3):
            assert states.parameters == pytest.approx(rank["parameters"], rel=WITHIN)
