"""Recipes for language models on two ranks: the numbers of one device, and resumed exactly.

By default each recipe runs under each strategy, and each method with each recipe and each strategy;
``--soak`` takes all of their combinations.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.pairwise import soaked
from helpers.ranks import run_ranks

from paceline import Run
from paceline.recipes.data.tiny_models import tiny_conversations, tiny_tokenizer

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
    for asked, answer in tiny_conversations()[1][:60]
]
JOB = Path(__file__).with_name("fit_job.py")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model in a folder, with the tokenizer and the records."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("base")
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=1024, **small)).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    (folder / "data.json").write_text(json.dumps(RECORDS))
    return folder


def train(folder, base, case: Case, strategy: str, ranks: int, *more: str, stop: int = 0) -> Run:
    folder.mkdir(exist_ok=True)
    settings = {
        "model": base,
        "learning_rate": 1e-3,
        "data": base / "data.json",
        "validation": 0.2,
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
    options = {"seconds": 150, "check": not stop, "transformers": True}
    run_ranks(JOB, ranks, stop, *command, *more, folder=folder, **options)
    return Run(folder / case.recipe / "1")


@pytest.fixture(scope="module")
def alone(tmp_path_factory, base):
    found: dict[Case, Run] = {}

    def of(case: Case) -> Run:
        if case not in found:
            found[case] = train(tmp_path_factory.mktemp(case.recipe), base, case, "single", 1)
        return found[case]

    return of


CASES = [
    (*case, method)
    for case in [
        ("llm-finetune", "fsdp", "32", 1e-6),
        ("llm-finetune", "deepspeed_stage_3", "32", 1e-6),
        ("dpo", "fsdp", "64", 1e-11),
        ("dpo", "deepspeed_stage_3", "32", 1e-5),  # differences of sums over answers, which are about 400
    ]
    for method in ("full", "lora")
]
USUAL = [CASES[number] for number in (1, 2, 4, 7)]
USUALLY_RESUMED = USUAL[2:]  # with a frozen reference, and with adapters alone in the checkpoint


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory, base):
    """The run of a case on two ranks to its end, made once."""
    found: dict[tuple[Case, str], Run] = {}

    def of(case: Case, strategy: str) -> Run:
        if (case, strategy) not in found:
            found[case, strategy] = train(tmp_path_factory.mktemp(strategy), base, case, strategy, 2)
        return found[case, strategy]

    return of


@pytest.mark.parametrize(("recipe", "strategy", "precision", "bound", "method"), soaked(CASES, USUAL))
def test_two_ranks_give_the_numbers_of_one_device(
    recipe, strategy, precision, bound, method, alone, on_ranks
):
    case = Case(recipe, method, precision)
    whole = on_ranks(case, strategy)
    for name in ("train/loss", "val/loss"):
        expected = alone(case).metrics[name].values
        assert whole.metrics[name].values == pytest.approx(expected, rel=0, abs=bound)
    assert len(set(whole.metrics["train/loss"].values)) == 6


@pytest.mark.parametrize(
    ("recipe", "strategy", "precision", "bound", "method"), soaked(CASES, USUALLY_RESUMED)
)
def test_a_resumed_run_is_bit_identical(
    recipe, strategy, precision, bound, method, on_ranks, base, tmp_path
):
    case = Case(recipe, method, precision)
    stopped = train(tmp_path, base, case, strategy, 2, stop=3)
    assert stopped.latest.name == "step-00000003"
    run = train(tmp_path, base, case, strategy, 2, "--resume", "auto")
    for name in ("train/loss", "val/loss"):
        assert run.metrics[name].values == on_ranks(case, strategy).metrics[name].values
    assert len(set(run.metrics["train/loss"].values)) == 6


def test_each_two_things_are_together_in_a_usual_case():
    kinds = [(recipe, strategy, method) for recipe, strategy, _, _, method in USUAL]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert len({(kind[one], kind[other]) for kind in kinds}) == 4
    resumed = {(strategy, method) for _, strategy, _, _, method in USUALLY_RESUMED}
    assert resumed == {("fsdp", "full"), ("deepspeed_stage_3", "lora")}
