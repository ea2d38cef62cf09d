"""compile=... under every strategy, on two ranks: the numbers of the run without it."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from helpers.ranks import run_cases

from paceline import Run
from paceline.trainer.checkpoint.integrity import verify
from paceline.trainer.checkpoint.weights import stored_shapes

JOB = Path(__file__).with_name("compile_job.py")
SETTINGS = {"whole": {"backend": "aot_eager"}, "blocks": {"backend": "aot_eager", "blocks": True}}
STRATEGIES = ("ddp", "fsdp", "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3")
LONG = [
    ("fsdp", "whole"),
    *(("deepspeed_stage_1", name) for name in SETTINGS),
    ("deepspeed_stage_2", "whole"),
    *(("deepspeed_stage_3", name) for name in SETTINGS),
]
PAIRS = [
    pytest.param(*pair, marks=pytest.mark.soak if pair in LONG else ())
    for pair in itertools.product(STRATEGIES, SETTINGS)
]


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    left_out = [] if request.config.getoption("--soak") else LONG
    cases = {
        strategy: {
            "strategy": strategy,
            "settings": {k: v for k, v in SETTINGS.items() if (strategy, k) not in left_out},
        }
        for strategy in STRATEGIES
        if any((strategy, name) not in left_out for name in SETTINGS)
    }
    return run_cases(JOB, tmp_path_factory.mktemp("compile"), cases, one_pair=True, function="runs")


@pytest.mark.parametrize(("strategy", "name"), PAIRS)
def test_rows_are_those_of_the_run_without_it(found, strategy, name):
    first = found[strategy][0]
    plain, compiled = first["plain"]["rows"], first[name]["rows"]
    assert len(plain) == len(compiled) > 6
    for expected, row in zip(plain, compiled, strict=True):
        assert row.keys() == expected.keys()
        for key, value in expected.items():
            assert math.isclose(row[key], value, rel_tol=1e-5, abs_tol=1e-6), key
    assert first[name]["said"] > 0
    assert first["plain"]["said"] == 0


@pytest.mark.parametrize(("strategy", "name"), PAIRS)
def test_checkpoints_have_the_module_s_own_names(found, strategy, name):
    first = found[strategy][0]
    assert names(first[name]["run"]) == names(first["plain"]["run"])


def names(folder):
    latest = Run(folder).latest
    assert latest is not None
    return stored_shapes(latest, verify(latest))
