"""Optimizers and schedules as settings of a recipe: checked before the run, and built with its defaults."""

from __future__ import annotations

import sys

import pytest
import torch

from paceline import PacelineError
from paceline.config import (
    OptimizerSetting,
    RunConfig,
    SchedulerSetting,
    make_optimizer,
    make_scheduler,
)
from paceline.config.load import check
from paceline.config.recipe import Recipe
from paceline.config.sources import Settings
from paceline.schedules import Constant, Cosine


class Config(RunConfig):
    optimizer: OptimizerSetting = "AdamW"
    scheduler: SchedulerSetting = "cosine"


def problems(**values):
    settings = Settings()
    settings.add(values, {}, "my.yaml")
    return check(Recipe("mine", Config, lambda config: None), settings).problems


def weights():
    return [torch.nn.Parameter(torch.zeros(2))]


@pytest.mark.parametrize(
    ("values", "key", "text"),
    [
        ({"optimizer": "AdamX"}, "optimizer", "did you mean: Adam"),
        ({"optimizer": {"class": "AdamW", "beta": [0.9, 0.95]}}, "optimizer.beta", "betas"),
        ({"optimizer": {"class": "AdamW", "betas": "often"}}, "optimizer.betas", "allowed"),
        ({"optimizer": {"betas": [0.9, 0.95]}}, "optimizer", "a class and its arguments"),
        ({"optimizer": "torch.nn.Linear"}, "optimizer", "is not an optimizer"),
        ({"optimizer": 3}, "optimizer", "a text"),
        ({"scheduler": {"class": "cosine", "warmup": "often"}}, "scheduler", "not a duration"),
        ({"scheduler": {"class": "cosine", "ends": 0.1}}, "scheduler.ends", "end"),
    ],
)
def test_what_is_wrong_is_named_with_its_key(values, key, text):
    found = dict(problems(**values))
    assert list(found) == [key]
    assert text in found[key]


@pytest.mark.parametrize(
    "setting", ["AdamW", "adamw", "sgd", {"class": "Adafactor"}, {"class": "torch.optim.Adam", "eps": 1e-6}]
)
def test_names_in_any_case_and_import_paths_are_taken(setting):
    assert problems(optimizer=setting) == []
    assert isinstance(make_optimizer(setting, weights(), lr=0.1), torch.optim.Optimizer)


def test_the_arguments_of_a_setting_are_those_of_the_optimizer():
    setting = {"class": "AdamW", "betas": [0.8, 0.9], "eps": 1e-5}
    group = make_optimizer(setting, weights(), lr=0.1, weight_decay=0.5, fused=None).param_groups[0]
    found = [group[name] for name in ("betas", "eps", "lr", "weight_decay")]
    assert found == [(0.8, 0.9), 1e-5, 0.1, 0.5]


def test_defaults_that_a_class_does_not_take_are_dropped():
    group = make_optimizer("Adafactor", weights(), lr=0.1, fused=True).param_groups[0]
    assert "fused" not in group
    assert group["lr"] == 0.1
    assert make_scheduler("constant", None, warmup=3, end=0.1) == Constant(warmup=3)


def test_what_a_setting_gives_counts_before_a_default():
    assert make_scheduler({"class": "cosine", "warmup": 5}, None, warmup=3) == Cosine(warmup=5)


def test_schedules_of_torch_get_the_optimizer():
    optimizer = make_optimizer("SGD", weights(), lr=0.1)
    scheduler = make_scheduler({"class": "StepLR", "step_size": 2}, optimizer, warmup=3)
    assert scheduler.optimizer is optimizer


def test_a_setting_that_was_not_checked_is_an_error_when_it_is_used():
    with pytest.raises(PacelineError, match=r"optimizer\.beta"):
        make_optimizer({"class": "AdamW", "beta": 1}, weights(), lr=0.1)


@pytest.mark.parametrize(
    ("name", "module"), [("adamw-8bit", "torchao.optim"), ("lion", "pytorch_optimizer")]
)
def test_optimizers_of_other_libraries_have_names_too(name, module):
    pytest.importorskip("torchao" if module == "torchao.optim" else "pytorch_optimizer")
    assert make_optimizer(name, weights(), lr=0.1).param_groups[0]["lr"] == 0.1


def test_a_library_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    found = dict(problems(optimizer="Prodigy"))
    assert "pip install pytorch_optimizer" in found["optimizer"]
