"""A run on ranks that was stopped and resumed in new processes ends bit-identical to one that never was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers.checkpoints import stored_tensors
from helpers.pairwise import soaked
from helpers.ranks import run_ranks
from safetensors.torch import load_file

from paceline import Run

pytestmark = pytest.mark.launch  # for its length
JOB = Path(__file__).with_name("resume_ranks_job.py")
SECONDS = 240
TIMED = {"time", "perf/samples_per_second"}
STRATEGIES = ["ddp", "fsdp", *(f"deepspeed_stage_{stage}" for stage in (1, 2, 3))]
USUAL = ["ddp", "fsdp", "deepspeed_stage_3"]
AT = 15  # step 7 of 8 in the second epoch, three after its log point
EXACT = {"precision": "64", "model": {"dropout": 0.0}}
TWICE = {"fits": 2, "max_epochs": 1}
SUMS = EXACT | {"accumulates": True}
NORMED = EXACT | TWICE | {"sync_batchnorm": True, "model": {"dropout": 0.0, "batch_norm": True}}
EARLY = {"name": "early", "patience": 1, "max_epochs": 9}
ALONE = [
    {"name": "one", "save_at": AT} | EXACT,
    {"name": "one-from-two", "resume": f"two-at-{AT}"} | EXACT,
    {"name": "sums-one", "save_at": AT} | SUMS,
    {"name": "sums-one-from-two", "resume": f"sums-two-at-{AT}"} | SUMS,
    EARLY | {"folder": "alone"},
    EARLY | {"folder": "alone", "resume": "latest"},
]


def first(strategies: list[str]) -> list[dict]:
    """What two ranks train to begin with."""
    return [
        *({"name": f"{s}-whole", "strategy": s, "save_at": AT, "finish": True} for s in strategies),
        *({"name": s, "strategy": s, "stop_at": 1} for s in strategies),
        *({"name": f"{s}-twice", "strategy": s} | TWICE for s in ("ddp", "fsdp", "deepspeed_stage_3")),
        *({"name": f"{s}-normed", "strategy": s} | NORMED for s in ("ddp", "fsdp")),
        {"name": "two", "strategy": "ddp", "save_at": AT} | EXACT,
        {"name": "sums-two", "strategy": "ddp", "save_at": AT} | SUMS,
        EARLY,
    ]


def second(strategies: list[str]) -> list[dict]:
    """What new ranks resume."""
    return [
        *({"name": s, "strategy": s, "resume": "latest"} for s in strategies),
        *({"name": f"{s}-from", "strategy": s, "resume": f"{s}-whole-at-{AT}"} for s in strategies),
        {"name": "two-from-one", "strategy": "ddp", "resume": f"one-at-{AT}"} | EXACT,
        {"name": "sums-two-from-one", "strategy": "ddp", "resume": f"sums-one-at-{AT}"} | SUMS,
        EARLY | {"resume": "latest"},
    ]


@pytest.fixture(scope="session")
def folder(request, tmp_path_factory) -> Path:
    """Where two ranks trained, one device resumed and trained, and two new ranks resumed."""
    place = tmp_path_factory.mktemp("resume")
    strategies = STRATEGIES if request.config.getoption("--soak") else USUAL
    for devices, cases in ((2, first(strategies)), (1, ALONE), (2, second(strategies))):
        run_ranks(JOB, devices, devices, place, json.dumps(cases), folder=place, seconds=SECONDS)
    return place


def final(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return stored_tensors(Run(folder / name / "1").latest)


def notes(folder: Path, name: str, devices: int = 2) -> list[dict]:
    return [json.loads((folder / f"{name}-{devices}-{rank}.json").read_text()) for rank in range(devices)]


def rows(folder: Path, name: str, after: int = -1) -> list[dict]:
    found = Run(folder / name / "1").rows
    return [{k: v for k, v in row.items() if k not in TIMED} for row in found if row["step"] > after]


def close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("ending", ["", "-from"])
@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_weights_and_optimizer_state_are_bit_identical(folder, strategy, ending):
    expected, found = final(folder, f"{strategy}-whole"), final(folder, f"{strategy}{ending}")
    assert any(name.startswith("optim.") for name in expected)
    close(found, expected, 0)


@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_every_row_of_metrics_is_bit_identical(folder, strategy):
    expected = rows(folder, f"{strategy}-whole")
    assert len(expected) > 8
    assert rows(folder, strategy) == expected
    assert rows(folder, f"{strategy}-from") == rows(folder, f"{strategy}-whole", AT)


@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_the_rest_of_the_state_is_the_same(folder, strategy):
    states = [
        json.loads((Run(folder / name / "1").latest / "state.json").read_text())
        for name in (f"{strategy}-whole", strategy, f"{strategy}-from")
    ]
    for state in states:
        state["counters"].pop("elapsed")
        state["metrics"]["latest"].pop("perf/samples_per_second")
    for part in ("counters", "ranks", "schedulers", "optimizers", "metrics"):
        assert states[1][part] == states[0][part], part
        assert states[2][part] == states[0][part], part


def test_the_stopped_runs_were_stopped_within_an_epoch(folder):
    for strategy in USUAL:
        names = [path.name for path in Run(folder / strategy / "1").checkpoints]
        assert names == [f"step-000000{step}" for step in ("02", "08", "16", "24")], strategy


def test_each_rank_draws_its_own(folder):
    first, second = (found["masks"] for found in notes(folder, "ddp-whole"))
    assert len(first) == len(second) == 24
    assert all(one != other for one, other in zip(first, second, strict=True))
    for found, whole in zip(notes(folder, "ddp-from"), (first, second), strict=True):
        assert found["masks"] == whole[AT:]


@pytest.mark.fault(23)
@pytest.mark.parametrize("name", ["one-from-two", "two-from-one", "sums-one-from-two", "sums-two-from-one"])
def test_a_checkpoint_goes_from_one_device_to_two_and_back(folder, name):
    sums = "sums-" if name.startswith("sums") else ""
    expected = final(folder, f"{sums}one")
    close(final(folder, f"{sums}two"), expected, 1e-12)
    close(final(folder, name), expected, 1e-12)


@pytest.mark.parametrize(("devices", "place"), [(1, "alone/early"), (2, "early")])
def test_a_run_that_stopped_early_has_nothing_left_to_do(folder, devices, place):
    assert Run(folder / place / "1").latest.name == "step-00000016"
    for found in notes(folder, "early", devices):
        assert found["steps"] == 16
        assert "got no better" in found["reason"]


@pytest.mark.parametrize("strategy", ["fsdp", "deepspeed_stage_3"])
def test_a_second_fit_continues_with_the_module(folder, strategy):
    expected, found = (stored_tensors(Run(folder / f"{s}-twice" / "2").latest) for s in ("ddp", strategy))
    close(found, expected, 1e-6)
    once = final(folder, "ddp-twice")  # the first of the two runs
    assert (found["model.first.weight"] - once["model.first.weight"]).abs().max() > 1e-3


def test_a_second_fit_synchronises_batch_norms_too(folder):
    expected, found = (stored_tensors(Run(folder / f"{s}-normed" / "2").latest) for s in ("ddp", "fsdp"))
    running = [name for name in expected if "running" in name]
    assert len(running) == 2
    close(found, expected, 1e-12)


@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_an_export_has_the_whole_weights(folder, strategy):
    expected = {
        name.removeprefix("model."): value
        for name, value in final(folder, "ddp-whole").items()
        if name.startswith("model.")
    }
    close(load_file(folder / f"{strategy}-whole-export" / "model.safetensors"), expected, 1e-6)
    best = stored_tensors(Run(folder / "ddp-whole" / "1").best)
    expected = {name.removeprefix("model."): v for name, v in best.items() if name.startswith("model.")}
    close(load_file(folder / f"{strategy}-whole-export-best" / "model.safetensors"), expected, 1e-6)


@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_a_validation_after_the_fit_is_the_fits_own(folder, strategy):
    values = Run(folder / f"{strategy}-whole" / "1").metrics["val/loss"].values
    for found in notes(folder, f"{strategy}-whole"):
        assert found["validated"]["val/loss"] == pytest.approx(values[-1], abs=1e-6)
        assert found["best"]["val/loss"] == pytest.approx(max(values), abs=1e-6) != values[-1]
