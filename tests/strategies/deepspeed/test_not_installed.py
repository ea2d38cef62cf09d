"""Without DeepSpeed everything works but its strategies, which say so in one sentence."""

import re
import sys
from pathlib import Path

import pytest
from helpers.ranks import run_ranks
from helpers.small_net import Net, data
from helpers.trainers import quiet

from paceline import PacelineError
from paceline.strategies import STRATEGIES, DeepSpeed
from paceline.tools import estimate

SENTENCE = "strategy deepspeed needs DeepSpeed, which is not installed"
NAMES = [name for name in STRATEGIES if name.startswith("deepspeed")]


@pytest.fixture(autouse=True)
def hidden(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)


def said_by(error):
    """The error's lines, which are to be as few as this."""
    first, got, fix = str(error.value).splitlines()
    assert first == SENTENCE
    assert "deepspeed" in got
    return fix


OBJECTS = {"DeepSpeed(2)": DeepSpeed(2), "DeepSpeed(3, offload=True)": DeepSpeed(3, offload=True)}


@pytest.mark.parametrize("strategy", [*NAMES, *OBJECTS.values()], ids=[*NAMES, *OBJECTS])
def test_a_fit_is_refused_before_anything_is_started(strategy, monkeypatch):
    trainer = quiet(strategy=strategy, max_steps=1)
    monkeypatch.setattr(trainer.strategy, "setup", None)  # it is not reached
    with pytest.raises(PacelineError) as error:
        trainer.fit(Net(), data())
    assert said_by(error) == "  fix: pip install deepspeed (Linux), or strategy='fsdp'"


def test_an_evaluation_says_it_too():
    with pytest.raises(PacelineError) as error:
        quiet(strategy="deepspeed_stage_2").validate(Net(), data())
    assert said_by(error)


@pytest.mark.parametrize("strategy", ["auto", "single"])
def test_other_strategies_train_on_one_device(strategy):
    trainer = quiet(strategy=strategy, max_steps=2)
    trainer.fit(Net(), data(), data())
    assert trainer.global_step == 2


def test_other_strategies_train_on_two_ranks(tmp_path):
    job = Path(__file__).with_name("hidden_job.py")
    done = run_ranks(job, 2, "ddp", "fsdp", "hsdp", folder=tmp_path, deepspeed=False)
    losses = dict(re.findall(r"^(\w+): val/loss (.+)$", done.stdout, re.MULTILINE))
    assert losses.keys() == {"ddp", "fsdp", "hsdp"}
    assert len(set(losses.values())) == 1


@pytest.mark.parametrize("strategy", ["single", "deepspeed_stage_3"])
def test_an_estimate_has_all_strategies(strategy):
    found = estimate(quiet(strategy=strategy), Net(), next(iter(data())), devices=2)
    assert {"fsdp", "deepspeed_stage_3"} <= {row.strategy for row in found.rows}
