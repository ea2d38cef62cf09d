"""Splitting layers: what is refused before anything is computed, and Hugging Face's plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers.checkpoints import assert_same_tensors, stored_tensors
from helpers.jobs import load_job
from helpers.ranks import run_ranks
from helpers.small_net import Net
from torch import nn

from paceline import PacelineError, Run, Trainer, TrainModule, tools
from paceline.strategies import FSDP, HSDP, Environment, Full
from paceline.strategies.layers.transformers_plan import parallelize_models

JOB = Path(__file__).with_name("tp_plan_job.py")


class Mesh:
    """As much of a ``DeviceMesh`` as is asked before anything is split."""

    def __init__(self, size: int) -> None:
        self._size = size

    def size(self) -> int:
        return self._size


def message(strategy, ranks: int) -> str:
    environment = Environment(torch.device("cpu"), 0, ranks, 0, ranks, starts=ranks)
    with pytest.raises(PacelineError) as raised:
        strategy.attach(environment, Full("64", torch.float64))
    return str(raised.value)


def test_the_ranks_must_be_groups_of_one_size():
    assert "got: tensor=2, 3 ranks" in message(FSDP(tensor=2), 3)
    assert "HSDP cannot split layers over 4 of 6 ranks" in message(HSDP(tensor=4), 6)


def test_one_rank_cannot_split_a_layer():
    with pytest.raises(PacelineError, match="FSDP cannot split layers over 2 of 1 rank"):
        Trainer(strategy=FSDP(tensor=2), devices=1, run_dir=None)


@pytest.mark.parametrize("wrong", [0, -2, 1.5, "2", True])
def test_the_number_is_a_count(wrong):
    with pytest.raises(PacelineError, match="tensor"):
        FSDP(tensor=wrong)


def test_a_module_without_a_plan_is_answered_with_what_to_write():
    with pytest.raises(PacelineError) as raised:
        Net().parallelize(Mesh(2))
    assert "Net does not say how its layers are split over ranks" in str(raised.value)
    assert "parallelize(self, mesh)" in str(raised.value)


@pytest.mark.parametrize(
    ("argument", "answer"),
    [
        ("tp_size", "tensor"),
        ("context_parallel_size", "context parallelism, for attention over parts of one sequence"),
        ("pp_size", "pipeline parallelism is not available: torchtitan"),
        ("expert_parallel", "expert parallelism is not available: torchtitan"),
    ],
)
def test_other_kinds_of_parallelism_are_answered_with_an_engine(argument, answer):
    with pytest.raises(PacelineError) as raised:
        FSDP(**{argument: 2})
    assert answer in str(raised.value)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("tensor_parallel", "FSDP(tensor=...) of paceline.strategies"),
        ("context-parallel", "torchtitan (github.com/pytorch/torchtitan) and NeMo AutoModel"),
        ("pipeline", "pipeline parallelism is not available: torchtitan"),
        ("megatron", "Megatron-LM is another engine"),
        ("tpu", "torch_xla's own launcher with Accelerate"),
    ],
)
def test_names_of_other_engines_are_answered(name, answer):
    with pytest.raises(PacelineError) as raised:
        Trainer(strategy=name, run_dir=None)
    assert answer in str(raised.value)


def test_a_tpu_is_answered_with_what_serves_it():
    with pytest.raises(PacelineError, match="TPUs are not supported: torch_xla's own launcher"):
        Trainer(accelerator="tpu", run_dir=None)


def test_an_estimate_says_that_it_does_not_know_the_plan():
    trainer = Trainer(run_dir=None)
    trainer.ranks.tensor_parallel_size = 2
    with pytest.raises(PacelineError, match="does not know how parallelize"):
        tools.estimate(trainer, Net(), None)


# -- Hugging Face ------------------------------------------------------------------------------


class WithPlan(nn.Module):
    """What is asked of a Hugging Face model."""

    def __init__(self, **plan: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(4, 8)}) for _ in range(2))
        self.norm = nn.LayerNorm(4)
        self.tp_plan = plan
        self.config = type("Config", (), {"num_attention_heads": 6, "num_key_value_heads": 2})()


class Around(TrainModule):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


@pytest.mark.parametrize(
    ("plan", "ranks", "problem"),
    [
        ({"layers.*.up": "moe_tp_experts"}, 2, "the tp_plan of model has styles that are not torch's"),
        (
            {"base.layers.*.up": "colwise"},
            2,
            "no layer of model, a WithPlan, has a name that its tp_plan splits",
        ),
        ({"layers.*.up": "colwise"}, 4, "num_attention_heads=6, num_key_value_heads=2"),
        ({"norm": "colwise"}, 2, "norm is a torch.nn.modules.normalization.LayerNorm"),
    ],
)
def test_plans_that_cannot_be_followed(plan, ranks, problem):
    with pytest.raises(PacelineError) as raised:
        parallelize_models(Around(WithPlan(**plan)), Mesh(ranks))
    assert problem in str(raised.value)


KINDS = ["qwen3", "llama-tied"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Each process imports transformers once, for all of them."""
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("plans")
    for kind in KINDS:
        load_job(JOB).train(kind, 1, folder)
    run_ranks(JOB, 2, 2, folder, json.dumps(KINDS), folder=folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_split_by_its_own_plan(kind, trained):
    one, many = (Run(trained / f"{kind}-{ranks}" / "1") for ranks in (1, 2))
    assert_same_tensors(stored_tensors(one.latest), stored_tensors(many.latest), 1e-12)
    assert many.metrics["train/loss"].values == pytest.approx(one.metrics["train/loss"].values, abs=1e-12)
