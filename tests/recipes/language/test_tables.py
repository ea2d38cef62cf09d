"""Tables of pages are those that benchmarks make of their results."""

import importlib
import json
from pathlib import Path

import pytest

pytest.importorskip("peft")

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("benchmark", "page"), [("what_fits", "guides/memory.md"), ("finetuning", "recipes/llm-finetune.md")]
)
def test_the_page_has_the_table(benchmark, page, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    found = json.loads((ROOT / f"benchmarks/results/{benchmark}.json").read_text())
    table = importlib.import_module(benchmark).table(found.get("rows", found))
    text = (ROOT / "docs" / page).read_text()
    assert f"<!-- python benchmarks/{benchmark}.py -->\n{table}<!-- end -->\n" in text


def test_losses_are_those_of_trl():
    found = json.loads((ROOT / "benchmarks/results/finetuning.json").read_text())
    assert set(found) == {"sft", "lora", "dpo", "kto", "orpo", "reward"}
    assert all(one["apart"] <= 1e-6 for one in found.values())
