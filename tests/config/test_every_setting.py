"""Every setting, given a wrong type, a neighbour's name, or nothing: a value, or at most 12 lines."""

from __future__ import annotations

import difflib
import sys
import textwrap

import pytest

from paceline import PacelineError
from paceline.config.describe import settings_of
from paceline.config.load import Loaded, find_recipe, load
from paceline.config.module_config import LoaderConfig, ModuleConfig
from paceline.config.names import slots
from paceline.other_trainers.arguments import NEEDED_BY_NONE, OF_TRAINER
from paceline.trainer.config.arguments import TrainerArguments

RECIPE = "paceline.recipes.vit_cifar10"
WRONG = (
    *("[]", "{}", "[1, {}]", "{class: 3}", "{class: nowhere:Net}", "a text"),
    *("-1", "1e400", ".nan", "true", '""', "null", ""),
)
RECIPE_KEYS = [one.key for one in settings_of(find_recipe(RECIPE, {}).config)]
TRAINER_KEYS = [f"trainer.{name}" for name in TrainerArguments.model_fields]
MODULE_KEYS = [name for name in ModuleConfig.model_fields if name != "trainer"]
MODULE_KEYS += [f"data.{name}" for name in (*LoaderConfig.model_fields, "train", "val", "test", "predict")]


@pytest.fixture(autouse=True)
def _project(tmp_path, monkeypatch):
    (tmp_path / "fuzzed.py").write_text(
        textwrap.dedent(
            """
            import torch

            from paceline import TrainModule


            class Net(TrainModule):
                def __init__(self, width: int = 3):
                    super().__init__()
                    self.net = torch.nn.Linear(2, width)
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("fuzzed", None)


def answer(target: str, *settings: str) -> str:
    """What is said of these settings; "" where they are right."""
    try:
        loaded = load(target, [], settings)
        assert isinstance(loaded, Loaded)
        loaded.checked()
    except PacelineError as error:
        text = str(error)
        assert len(text.splitlines()) <= 12, text
        assert max(map(len, text.splitlines())) <= 520, text
        return text
    return ""


@pytest.mark.parametrize("key", [*RECIPE_KEYS, "model", "trainer", "preset", "recipe", *TRAINER_KEYS])
def test_a_setting_of_a_recipe_or_the_trainer(key):
    said = [answer(RECIPE, f"{key}={value}") for value in WRONG]
    named = [text for text in said if text]
    assert named, "nothing was refused"
    assert all(key.partition(".")[0] in text for text in named)


@pytest.mark.parametrize("key", MODULE_KEYS)
def test_a_setting_of_a_module(key):
    said = [answer("fuzzed:Net", f"{key}={value}") for value in WRONG]
    assert any(said), "nothing was refused"


@pytest.mark.fit  # for its length
@pytest.mark.parametrize("slot", ["callbacks", "loggers", "strategy"])
def test_an_argument_of_a_class(slot):
    from paceline.config.signatures import parameters_of

    for name, cls in slots()[slot].names.items():
        for argument in parameters_of(cls)[0]:
            for value in WRONG:
                text = f"{{class: {name}, {argument}: {value}}}"
                given = f"[{text}]" if slot != "strategy" else text
                answer(RECIPE, f"trainer.{slot}={given}")


@pytest.mark.parametrize("key", [*RECIPE_KEYS, *TRAINER_KEYS])
def test_a_typing_mistake_is_answered_with_the_key(key):
    parent, dot, name = key.rpartition(".")
    wrong = name[:1] + name[2:] + name[1:2] if len(name) > 3 else f"{name}s"  # a letter at the end
    if wrong == name or not difflib.get_close_matches(wrong, [name], cutoff=0.6):
        wrong = f"{name}s"
    said = answer(RECIPE, f"{parent}{dot}{wrong}=1")
    assert f"did you mean {name}?" in said or "use " in said, said


@pytest.mark.parametrize("name", [*OF_TRAINER, *NEEDED_BY_NONE])
def test_a_neighbours_name_is_answered_with_ours(name):
    said = answer(RECIPE, f"trainer.{name}=1")
    assert f"trainer.{name} (the command line): " in said
    assert (OF_TRAINER.get(name) or NEEDED_BY_NONE[name]) in said
