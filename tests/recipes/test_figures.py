"""The figures that the pages of recipes state: measured, listed, and reached again."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import pytest
from helpers.jobs import load_job
from helpers.recipes import skip_without_packages

import paceline
from paceline.recipes import RECIPES

ROOT = Path(paceline.__file__).parent
MEASURED = json.loads((ROOT / "benchmarks" / "results" / "recipes.json").read_text())
WHERE_LESS_IS_BETTER = ("loss", "bits_per_byte")


def is_at_least(value: float, bound: float, metric: str) -> bool:
    return value <= bound if metric.endswith(WHERE_LESS_IS_BETTER) else value >= bound


@pytest.mark.parametrize("name", RECIPES)
def test_the_figure_is_the_one_that_was_measured(name):
    figure, found = RECIPES[name].figure, MEASURED[name]
    assert (figure.preset, figure.metric) == (found["preset"], found["metric"])
    assert figure.runs == len(found["values"]) >= 5
    assert figure.mean == float(f"{found['mean']:.4g}")
    assert figure.deviation == float(f"{found['deviation']:.2g}")
    assert figure.seconds == math.ceil(found["seconds"]) <= 60
    assert all(is_at_least(value, figure.bound, figure.metric) for value in found["values"])


@pytest.mark.parametrize("name", RECIPES)
def test_its_page_states_the_figure_and_the_bound(name):
    page = (ROOT / "docs" / "recipes" / f"{name}.md").read_text()
    figure = RECIPES[name].figure
    assert str(figure) in page
    assert re.search(rf"\b{figure.seconds} s\b", page)
    assert f"at least {figure.bound:g}" in page or f"at most {figure.bound:g}" in page
    assert f"python benchmarks/recipes.py {name} --json benchmarks/results/recipes.json" in page
    assert f"(../images/recipes/{name}.png)" in page


def test_the_page_of_all_recipes_has_a_card_for_each():
    gallery = load_job(ROOT / "tests" / "make_gallery.py")
    text = gallery.PAGE.read_text()
    assert text == gallery.page(), "python tests/make_gallery.py"
    pictures = re.findall(r"\[!\[([\w-]+)\]\((\S+)\)\]\(\1\.md\)", text)
    assert sorted(name for name, _ in pictures) == [*RECIPES]
    for _, path in pictures:
        assert (gallery.PAGE.parent / path).stat().st_size < 40_000, path


AT_EACH_CHANGE = ("tabular",)  # the shortest; and the README's main job, vit-cifar10


@pytest.mark.launch
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak(ci=name in AT_EACH_CHANGE)) for name in RECIPES]
)
def test_the_figure_is_reached(name, monkeypatch):
    skip_without_packages(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # on a machine that is busy, threads wait for each other
    figure = RECIPES[name].figure
    benchmark = load_job(ROOT / "benchmarks" / "recipes.py")
    value, seconds = benchmark.run(name, seed=0)
    print(f"{name}: {figure.metric} {value:.4f} in {seconds:.0f} s", file=sys.stderr)
    assert is_at_least(value, figure.bound, figure.metric)
