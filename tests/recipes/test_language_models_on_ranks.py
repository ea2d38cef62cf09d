"""Recipes for language models on two ranks: the numbers of one device, and resumed exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.ranks import run_ranks

from paceline import Run
from paceline.recipes.tiny_models import tiny_conversations

pytest.importorskip("transformers")
pytest.importorskip("peft")


class Case(NamedTuple):
    recipe: str
    method: str
    precision: str


RECORDS = [
    {
        "messages": [asked, answer],
        "chosen": [asked, answer],
        "rejected": [asked, answer | {"content": " ".join(reversed(answer["content"].split()))}],
    }
    for asked, answer in tiny_conversations()[1]
]
JOB = Path(__file__).with_name("fit_job.py")


def train(folder, case: Case, strategy: str, ranks: int, *more: str, stop: int = 0) -> Run:
    folder.mkdir(exist_ok=True)
    (folder / "data.json").write_text(json.dumps(RECORDS))
    settings = {
        "data": "data.json",
        "method": case.method,
        "lora_rank": 4,
        "length": 128,
        "batch_size": 2,
        "trainer.global_batch_size": 4,
        "trainer.max_steps": 6,
        "trainer.precision": case.precision,
        "trainer.strategy": strategy,
        "trainer.devices": ranks,
        "trainer.accelerator": "cpu",
        "trainer.log_every": 1,
        "trainer.limit_val_batches": 2,
        "trainer.validate_every": "3st",
        "trainer.run_dir": folder,
    }
    command = ["fit", case.recipe, *(f"{key}={value}" for key, value in settings.items())]
    run_ranks(JOB, ranks, stop, *command, *more, folder=folder, seconds=150, check=not stop)
    return Run(folder / case.recipe / "1")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    found: dict[Case, Run] = {}

    def of(case: Case) -> Run:
        if case not in found:
            found[case] = train(tmp_path_factory.mktemp(case.recipe), case, "single", 1)
        return found[case]

    return of


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize(
    ("recipe", "strategy", "precision", "bound"),
    [
        ("llm-finetune", "fsdp", "32", 1e-6),
        ("llm-finetune", "deepspeed_stage_3", "32", 1e-6),
        ("dpo", "fsdp", "64", 1e-11),
        ("dpo", "deepspeed_stage_3", "32", 1e-5),  # differences of sums over answers, which are about 400
    ],
)
def test_two_ranks_give_the_numbers_of_one_device(
    recipe, strategy, precision, bound, method, alone, tmp_path
):
    case = Case(recipe, method, precision)
    stopped = train(tmp_path, case, strategy, 2, stop=3)
    assert stopped.latest.name == "step-00000003"
    run = train(tmp_path, case, strategy, 2, "--resume", "auto")
    whole = train(tmp_path / "whole", case, strategy, 2)
    for name in ("train/loss", "val/loss"):
        assert run.metrics[name].values == whole.metrics[name].values  # to the bit
        expected = alone(case).metrics[name].values
        assert whole.metrics[name].values == pytest.approx(expected, rel=0, abs=bound)
    assert len(set(whole.metrics["train/loss"].values)) == 6
