"""Recipes for language models on ranks: the numbers of one device, and resumed exactly on another world.

Samples are of very different lengths and weights, micro-batches of different sizes, and the runs continue
into a second epoch. By default each case runs under one strategy; ``--soak`` takes all of them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from helpers.pairwise import soaked
from helpers.ranks import run_ranks

from paceline.recipes.data.tiny_models import tiny_conversations, tiny_tokenizer

pytest.importorskip("transformers")
pytest.importorskip("peft")

JOB = Path(__file__).with_name("language_job.py")
STRATEGIES = ("ddp", "fsdp", "deepspeed_stage_3")
LORA = {"method": "lora", "lora_rank": 4}
DORA = LORA | {"lora_dora": True, "modules_to_save": ["lm_head"]}
FREEZE = {"method": "freeze", "train_layers": 1, "train_modules": ["lm_head"]}
CASES = {  # by name: the recipe, its settings, and the strategy it is usually tried with; "": none
    "full": ("llm-finetune", {"packing": False}, "ddp"),
    "packed": ("llm-finetune", {"length": 64}, "fsdp"),
    "freeze": ("llm-finetune", FREEZE | {"packing": False}, ""),
    "lora": ("llm-finetune", LORA | {"packing": False}, "deepspeed_stage_3"),
    "dora": ("llm-finetune", DORA | {"packing": False, "label_smoothing": 0.1}, "fsdp"),
    "distill": ("llm-distill", {"packing": False, "soft": 0.5, "divergence": 0.3}, "ddp"),
    "distill-lora": ("llm-distill", LORA | {"length": 64}, "deepspeed_stage_3"),
    "dpo": ("dpo", {"label_smoothing": 0.1}, "ddp"),
    "dpo-lora": ("dpo", LORA | {"sft_weight": 0.5, "beta": 1.0, "objective": "ipo"}, "fsdp"),
    "orpo": ("dpo", {"objective": "orpo"}, ""),
    "kto": ("kto", {"good_weight": 1.3, "bad_weight": 0.7}, "deepspeed_stage_3"),
    "kto-lora": ("kto", LORA, "fsdp"),
    "reward": ("reward-model", {"center": 0.01}, "ddp"),
    "reward-lora": ("reward-model", LORA, ""),
}
FILES = {"llm-finetune": "chats", "llm-distill": "chats", "dpo": "pairs", "reward-model": "pairs"}
STEPS = 7


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Two models in folders, with the tokenizer, and the data of all recipes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("base")
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    for seed, name in enumerate(("model", "teacher")):
        torch.manual_seed(seed)
        LlamaForCausalLM(
            LlamaConfig(vocab_size=1024, eos_token_id=2, initializer_range=0.1, **small)
        ).save_pretrained(folder / name)
        tiny_tokenizer().save_pretrained(folder / name)
    found = {"chats": [], "more": [], "pairs": [], "labelled": []}
    for number, (asked, answer) in enumerate(tiny_conversations()[1][:40]):
        words = answer["content"].split()[: (2, 40, 5, 12)[number % 4]]
        asked |= {"content": asked["content"][-(10 + 7 * (number % 9)) :]}
        good, bad = (
            {"role": "assistant", "content": " ".join(part)} for part in (words, [*words[::-1], "so"])
        )
        more = {"weight": (1, 0.5, 3)[number % 3]}
        found["more" if number % 5 == 0 else "chats"].append({"messages": [asked, good]} | more)
        found["pairs"].append({"prompt": [asked], "chosen": [good], "rejected": [bad]} | more)
        label = {"label": number % 3 > 0}
        found["labelled"].append({"prompt": [asked], "completion": [good]} | label | more)
    for name, records in found.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))
    return folder


def case_of(base, recipe, strategy, ranks, settings, *, samples=7, **more):
    trainer = {
        "strategy": strategy,
        "devices": ranks,
        "global_batch_size": samples,
        "max_steps": STEPS,
        "validate_every": "1ep",
    }
    fixed = {
        "model": str(base / "model"),
        "data": str(base / f"{FILES.get(recipe, 'labelled')}.jsonl"),
        "validation": 0.2,
        "learning_rate": 1e-3,
        "length": 128,
        "batch_size": 3,
        "epochs": 3,
        "export": False,
    }
    if recipe == "llm-distill":
        fixed["teacher"] = str(base / "teacher")
    return {"recipe": recipe, "settings": fixed | settings | {"trainer": trainer}, **more}


def train(folder, ranks, cases, **options):
    """Run the cases on ranks. By name: what the job wrote."""
    options = {"seconds": 150, "transformers": True} | options
    run_ranks(JOB, ranks, folder, json.dumps(cases), folder=folder, **options)
    found = {name: folder / f"{name}.json" for name in cases}
    return {name: json.loads(file.read_text()) for name, file in found.items() if file.exists()}


# -- the same numbers ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def names(request):
    """The cases to run, by strategy."""
    every = request.config.getoption("--soak")
    return {one: [name for name, case in CASES.items() if every or case[2] == one] for one in STRATEGIES}


@pytest.fixture(scope="module")
def alone(tmp_path_factory, base, names):
    wanted = {name for its in names.values() for name in its}
    cases = {name: case_of(base, CASES[name][0], "single", 1, CASES[name][1]) for name in wanted}
    return train(tmp_path_factory.mktemp("alone"), 1, cases)


@pytest.fixture(scope="module")
def on_two(tmp_path_factory, base, names):
    """What the cases of a strategy were on two ranks, all in one launch."""
    found = {}

    def of(strategy):
        if strategy not in found:
            cases = {
                name: case_of(base, CASES[name][0], strategy, 2, CASES[name][1]) for name in names[strategy]
            }
            found[strategy] = train(tmp_path_factory.mktemp(strategy), 2, cases)
        return found[strategy]

    return of


@pytest.mark.parametrize(
    ("name", "strategy"),
    soaked(
        [(name, one) for one in STRATEGIES for name in CASES],
        [(name, case[2]) for name, case in CASES.items() if case[2]],
    ),
)
def test_two_ranks_give_the_numbers_of_one_device(name, strategy, alone, on_two):
    found, expected = on_two(strategy)[name], alone[name]
    for loss, values in expected["losses"].items():
        assert found["losses"][loss] == pytest.approx(values, rel=0, abs=1e-6), loss
    assert len(set(expected["losses"]["train/loss"])) == STEPS
    assert found["samples"] == expected["samples"]


# -- resumed in the middle of an epoch -----------------------------------------------------------

STOP = 3
SOURCES = ("chats", 3), ("more", 1)
RESUMED = {
    "mixed": {"length": 64} | LORA,
    "streamed": {"length": 64, "streaming": True},
    "grouped": {"packing": False, "group_by_length": True},
}


def resumable(base, strategy, ranks, suffix="", precision="64", **more):
    """The cases on so many ranks, with micro-batches of another size on each world."""
    cases = {}
    for name, settings in RESUMED.items():
        sources = [{"path": str(base / f"{file}.jsonl"), "weight": weight} for file, weight in SOURCES]
        if name != "mixed":
            sources = [source | {"weight": None} for source in sources]
        settings = settings | {"data": sources, "batch_size": 4 // ranks, "learning_rate": 3e-4}
        case = case_of(base, "llm-finetune", strategy, ranks, settings, samples=4, **more)
        case["settings"]["trainer"]["precision"] = precision  # a loss of 7 in float32 has steps of 4.8e-7
        cases[name + suffix] = case
    return cases


@pytest.mark.parametrize("strategy", soaked(STRATEGIES, ["fsdp"]))
def test_a_run_resumed_on_another_world_has_the_same_steps(strategy, base, tmp_path):
    kind = {"precision": "32" if strategy == "deepspeed_stage_3" else "64"}
    two = train(
        tmp_path,
        2,
        resumable(base, strategy, 2, **kind) | resumable(base, strategy, 2, "-stopped", stop=STOP, **kind),
    )
    for name in RESUMED:
        shutil.copytree(tmp_path / f"{name}-stopped", tmp_path / f"{name}-elsewhere")
    again = train(tmp_path, 2, resumable(base, strategy, 2, "-stopped", resume="auto", **kind))
    one = train(
        tmp_path,
        1,
        resumable(base, "single", 1, "-alone", **kind)
        | resumable(base, "single", 1, "-elsewhere", resume="auto", **kind),
    )
    for name in RESUMED:
        whole, before, alone = two[name], two[f"{name}-stopped"]["samples"], one[f"{name}-alone"]
        resumed, elsewhere = again[f"{name}-stopped"], one[f"{name}-elsewhere"]
        assert resumed["losses"] == whole["losses"]  # bit for bit
        for loss, values in alone["losses"].items():
            for found in (whole, elsewhere):
                assert found["losses"][loss] == pytest.approx(values, rel=0, abs=1e-6), (name, loss)
        assert len(set(whole["losses"]["train/loss"])) == STEPS
        assert alone["samples"] == whole["samples"]
        assert STOP <= len(before) < STEPS
        for found in (resumed, elsewhere):
            assert before | found["samples"] == whole["samples"]
        used = {index for its in before.values() for index in its}
        assert len(used) == 4 * len(before)  # it was in the middle of an epoch
        assert used.isdisjoint(whole["samples"][str(len(before) + 1)])


def test_a_run_that_was_killed_continues_on_another_world(base, tmp_path):
    def cases(ranks, name, **more):
        case = resumable(base, "ddp" if ranks > 1 else "single", ranks, **more)["streamed"]
        case["settings"]["trainer"]["callbacks"] = [{"class": "Checkpoint", "every": "2st"}]
        return {name: case}

    how = {"check": False, "after_a_failure": 0.1}
    assert train(tmp_path, 2, cases(2, "killed", killed=5), **how) == {}
    one = train(tmp_path, 1, cases(1, "killed", resume="auto") | cases(1, "whole"))
    found, expected = one["killed"], one["whole"]
    first = min(map(int, found["samples"]))
    assert first in (3, 5)  # the save of step 4 may not have been whole
    assert [*map(int, found["samples"])] == [*range(first, STEPS + 1)]
    assert found["samples"].items() <= expected["samples"].items()
    for loss, values in expected["losses"].items():
        assert found["losses"][loss] == pytest.approx(values, rel=0, abs=1e-6)
