"""compile=... under every strategy, on two ranks: the numbers of the run without it."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import pytest

from paceline import Run
from paceline.trainer.verification import verify
from paceline.trainer.weights import stored_shapes

JOB = Path(__file__).with_name("compile_job.py")
run_pairs = runpy.run_path(str(Path(__file__).parents[1] / "faults" / "pairs.py"))["run"]
SETTINGS = {"whole": {"backend": "aot_eager"}, "blocks": {"backend": "aot_eager", "blocks": True}}
CASES = {
    "ddp": ["whole", "blocks"],
    "fsdp": ["blocks"],
    "deepspeed_stage_1": ["whole"],
    "deepspeed_stage_2": ["blocks"],
    "deepspeed_stage_3": ["whole"],
}
PAIRS = [(strategy, name) for strategy, names in CASES.items() for name in names]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    cases = {
        strategy: {"strategy": strategy, "settings": {name: SETTINGS[name] for name in names}}
        for strategy, names in CASES.items()
    }
    return run_pairs(JOB, tmp_path_factory.mktemp("compile"), cases)


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
