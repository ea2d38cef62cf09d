"""What ``config show`` and ``recipes show`` say."""

import sys
from enum import Enum
from pathlib import Path

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from paceline.config.describe import RECIPES_CHOICE, type_in_words, values_of
from paceline.config.load import load

CODE = """
from paceline import DataModule, TrainModule
from paceline.config import RunConfig


class Config(RunConfig):
    epochs: int = 3
    hub_token: str = ""


def build(config):
    return config.make_trainer(max_epochs=config.epochs)


class Net(TrainModule):
    pass


class Points(DataModule):
    pass
"""


@pytest.fixture(autouse=True)
def _recipe(tmp_path):
    (tmp_path / "described.py").write_text(CODE)
    yield
    sys.modules.pop("described", None)


def shown(target, *settings):
    return {one.key: one for one in values_of(load(target, [], settings))}


def test_each_value_has_its_source_and_no_secret():
    found = shown("described.py", "hub_token=hf_1", "trainer.max_steps=4")
    assert (found["epochs"].value, found["epochs"].source) == (3, "default")
    assert (found["hub_token"].value, found["hub_token"].source) == ("***", "the command line")
    assert (found["trainer.max_steps"].value, found["trainer.max_steps"].source) == (4, "the command line")


def test_what_a_recipe_may_choose_is_not_called_a_default():
    assert shown("described.py")["trainer.max_epochs"].source == RECIPES_CHOICE
    of_module = shown("described:Net", "data=described:Points")
    assert of_module["trainer.max_epochs"].source == "default"


def test_types_are_said_in_words():
    class Source(BaseModel):
        path: str

    class Kind(Enum):
        A = "a"
        B = "b"

    said = {str | Source | None: "string or mapping or null", Kind | int: "a | b or integer", Path: "path"}
    for annotation, words in said.items():
        assert type_in_words(FieldInfo(annotation=annotation)) == words
