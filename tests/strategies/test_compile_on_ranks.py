"""compile=... under every strategy and precision: the numbers and the checkpoints of the run without it.

It takes half a minute, and runs with the launchers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from helpers.checkpoints import stored_tensors
from helpers.jobs import load_job
from helpers.pairwise import soaked
from helpers.ranks import run_cases

from paceline.strategies.options import precisions

pytestmark = pytest.mark.launch
JOB = Path(__file__).with_name("compile_job.py")
job = load_job(JOB)
ZERO = [f"deepspeed_stage_{stage}" for stage in (1, 2, 3)]
DEVICES = {"single": 1, "ddp": 2, "fsdp": 2, "hsdp": 4, **dict.fromkeys(ZERO, 2)}
TOLERANCES = {"64": 1e-12, "32": 1e-6}  # in 16 bits: its rounding
EVERY = [
    (strategy, (precision, setting))
    for strategy in DEVICES
    for precision in ("32", "bf16", "64", "bf16-true")
    if precision in precisions(strategy.partition("_")[0])
    for setting in job.SETTINGS
]
USUAL = [  # each kind of strategy, each precision, both settings; the other stages and hsdp under --soak
    ("single", ("bf16", "blocks")),
    ("ddp", ("32", "whole")),
    ("fsdp", ("64", "blocks")),
    ("deepspeed_stage_3", ("bf16-true", "whole")),
]
STOPPED = [("fsdp", ("64", "blocks"))]  # and resumed; those of float32 under --soak
TO_STOP = [pair for pair in EVERY if pair in STOPPED or pair[1][0] == "32"]


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    """What ``compile_job.runs`` returned on rank 0, by strategy and precision."""
    soak = request.config.getoption("--soak")
    todo: dict[tuple[str, str], list[str]] = defaultdict(list)
    for strategy, (precision, setting) in EVERY if soak else USUAL:
        todo[strategy, precision].append(setting)
    todo["single", "32"] = todo.get(("single", "32"), [])  # what 16 bits are compared with
    results = {}
    for devices in (1, 2, 4):
        cases = {
            f"{strategy} {precision}": {
                "strategy": strategy,
                "precision": precision,
                "devices": devices,
                "settings": settings,
                "stops": any(
                    (strategy, (precision, s)) in (TO_STOP if soak else STOPPED) for s in settings
                ),
            }
            for (strategy, precision), settings in todo.items()
            if DEVICES[strategy] == devices
        }
        for case in cases.values():
            if not soak and (case["stops"] or case["strategy"] in ZERO):
                case["samples"] = 48  # of one size to compile for: single and ddp have several
        if devices == 1:
            results |= {
                name: job.runs(tmp_path_factory.mktemp("one"), **case) for name, case in cases.items()
            }
        elif cases:
            folder, seconds = tmp_path_factory.mktemp("compile"), 1800 if soak else 240
            on_ranks = run_cases(
                JOB, folder, cases, one_pair=True, function="runs", ranks=devices, seconds=seconds
            )
            results |= {name: ranks[0] for name, ranks in on_ranks.items()}
    return results


@pytest.mark.parametrize(("strategy", "how"), soaked(EVERY, USUAL))
def test_rows_and_checkpoints_are_those_of_the_run_without_it(found, strategy, how):
    precision, setting = how
    plain, compiled = (found[f"{strategy} {precision}"][name] for name in ("plain", setting))
    assert compiled["compiled"]
    assert not plain["compiled"]
    expected, values = (stored_tensors(Path(run["latest"])) for run in (plain, compiled))
    assert values.keys() == expected.keys()
    bounds = roundings(expected, found) if precision.startswith("bf16") else {}
    for name, value in expected.items():
        assert values[name].dtype == value.dtype, name
        bound = bounds.get(name.partition(".")[0], TOLERANCES.get(precision))
        torch.testing.assert_close(
            values[name], value, rtol=0, atol=bound, msg=lambda m, n=name: f"{n}: {m}"
        )
    compare_rows(plain["rows"], compiled["rows"], max(10 * max(bounds.values(), default=0), 1e-5))


def roundings(tensors: dict[str, torch.Tensor], found: dict) -> dict[str, float]:
    """How far 16 bits have come from float32 on one device, for weights and for moments."""
    exact = stored_tensors(Path(found["single 32"]["plain"]["latest"]))
    bounds = {}
    for kind in ("model", "optim"):
        names = [name for name in exact if name.startswith(f"{kind}.")]
        bounds[kind] = max((tensors[n].double() - exact[n].double()).abs().max().item() for n in names)
        assert bounds[kind] > 0
    return bounds


def compare_rows(expected: list[dict], rows: list[dict], tolerance: float) -> None:
    assert len(rows) == len(expected) > 6
    for one, other in zip(expected, rows, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert math.isclose(other[key], value, rel_tol=tolerance, abs_tol=tolerance), key
    assert {"train/size", "train/twice"} <= {key for row in rows for key in row}


@pytest.mark.parametrize(("strategy", "how"), soaked(TO_STOP, STOPPED))
def test_a_compiled_run_that_was_stopped_and_resumed_is_the_same_to_the_bit(found, strategy, how):
    precision, setting = how
    runs = found[f"{strategy} {precision}"]
    expected, values = (stored_tensors(Path(runs[n]["latest"])) for n in (setting, f"{setting}-both"))
    assert values.keys() == expected.keys()
    assert values["model.steps"].item() > 0
    for name, value in expected.items():
        assert torch.equal(values[name], value), name
    compare_rows(runs[setting]["rows"], runs[f"{setting}-both"]["rows"], 0)


@pytest.mark.parametrize("way", ["first", "then"])
@pytest.mark.parametrize(("strategy", "how"), soaked(TO_STOP, STOPPED))
def test_a_checkpoint_is_read_with_or_without_compilation(found, strategy, how, way):
    precision, setting = how
    runs = found[f"{strategy} {precision}"]
    expected, values = (
        stored_tensors(Path(runs[name]["latest"])) for name in ("plain", f"{setting}-{way}")
    )
    assert values.keys() == expected.keys()
    bounds = roundings(expected, found) if precision.startswith("bf16") else {}
    for name, value in expected.items():
        bound = bounds.get(name.partition(".")[0], TOLERANCES.get(precision))
        torch.testing.assert_close(
            values[name], value, rtol=0, atol=bound, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert bool(runs[f"{setting}-{way}"]["compiled"]) == (way == "then")
    assert runs[setting]["compiled"]  # where the first one began
