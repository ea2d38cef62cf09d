"""The JSON Schema of configurations, read by another library."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

import paceline
from paceline.config.load import find_recipe
from paceline.config.module_config import MODULE_RECIPE
from paceline.config.schema import schema_of, spellings
from paceline.plugins import folded
from paceline.recipes import RECIPES
from paceline.trainer.config.yaml_reader import read_yaml

pytestmark = pytest.mark.fit  # for its length
ROOT = Path(paceline.__file__).parent
MODULES = {name: f"paceline.recipes.{recipe.module}" for name, recipe in RECIPES.items()}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
YAML = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = {
    f"{page.name}:{number}": block
    for page in PAGES
    for number, block in enumerate(YAML.findall(page.read_text()))
    if not re.search("^(distributed_type|model_name_or_path|base_model):", block, re.MULTILINE)  # others'
}
FILES = {
    str(file.relative_to(ROOT)): file.read_text()
    for folder in ("recipes", "docs", "benchmarks")
    for file in (ROOT / folder).rglob("*.y*ml")
}
OURS = [where for where, text in (BLOCKS | FILES).items() if "apiVersion:" not in text]  # not Kubernetes'


checked: list[dict] = []
"""Definitions that are schemas; what recipes have in common is looked at once."""


def validator(recipe=MODULE_RECIPE):
    schema = schema_of(recipe)
    new = {name: one for name, one in schema.get("$defs", {}).items() if one not in checked}
    Draft202012Validator.check_schema(schema | {"$defs": new})
    checked.extend(new.values())
    return Draft202012Validator(schema)


@pytest.fixture(scope="module")
def of_modules():
    return validator()


@pytest.fixture(scope="module")
def of_recipes():
    return {name: validator(find_recipe(name, MODULES)) for name in RECIPES}


def errors(found, content):
    return [f"{'.'.join(map(str, one.path))}: {one.message}" for one in found.iter_errors(content)]


@pytest.mark.parametrize("where", OURS)
def test_every_configuration_of_the_repository_is_valid(where, of_modules, of_recipes):
    content = read_yaml((BLOCKS | FILES)[where], where).content
    chosen = of_recipes[content["recipe"]] if "recipe" in content else of_modules
    assert errors(chosen, content) == []


def test_there_are_some():
    assert len(BLOCKS) >= 2
    assert len(OURS) >= len(BLOCKS | FILES) - 4


def test_the_config_of_a_run_is_valid(of_recipes, tmp_path):
    from paceline.config.load import load

    loaded = load("digits", [], ["preset=quick", "callbacks+=ema", "trainer.max_steps=1"], MODULES)
    run = loaded.recipe.build(loaded.checked()).fit()
    config = yaml.safe_load((run.folder / "config.yaml").read_text())["config"]
    assert errors(of_recipes["digits"], config) == []


@pytest.mark.parametrize(
    "content",
    [
        {"epoch": 3},
        {"epochs": "many"},
        {"preset": "tny"},
        {"model": {"widht": 3}},
        {"trainer": {"max_epoch": 3}},
        {"trainer": {"max_epochs": "three"}},
        {"trainer": {"precision": "bf-16"}},
        {"trainer": {"strategy": "dpp"}},
        {"trainer": {"strategy": {"class": "FSDP", "cpu_ofload": True}}},
        {"callbacks": ["emma"]},
        {"callbacks": [{"class": "EarlyStopping"}]},
        {"callbacks": [{"class": "EarlyStopping", "monitor": "val/loss", "patiense": 3}]},
        {"loggers": 3},
    ],
)
def test_a_mistake_is_none_of_it(content, of_recipes):
    assert errors(of_recipes["digits"], content)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"recipe": "digits", "preset": "quick", "epochs": 3, "model": {"width": 3}},
        {"callbacks": ["ema", "early-stopping", "my:Watch", {"class": "my.Watch", "every": 3}]},
        {"callbacks": [{"class": "early_stopping", "monitor": "val/loss", "patience": 3}]},
        {"loggers": False},
        {"loggers": ["csv", "-tensorboard"]},
        {
            "trainer": {
                "strategy": {"class": "FSDP", "cpu_offload": True},
                "precision": 16,
                "max_time": "2h",
            }
        },
        {
            "trainer": {
                "strategy": "ddp",
                "validate_every": None,
                "limit_train_batches": 0.5,
                "profile": True,
            }
        },
    ],
)
def test_what_is_right_is_valid(content, of_recipes):
    assert errors(of_recipes["digits"], content) == []


def test_every_spelling_in_the_schema_is_read():
    assert all(folded(one) == folded("EarlyStopping") for one in spellings("EarlyStopping"))
