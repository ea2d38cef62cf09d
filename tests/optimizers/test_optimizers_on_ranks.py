"""Muon and bfloat16 moments on two ranks, with parts that are not even: exact resume, and checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.checkpoints import stored_state, stored_tensors
from helpers.jobs import load_job
from helpers.pairwise import soaked
from helpers.ranks import run_cases

from paceline import Run

pytestmark = pytest.mark.launch  # for its length

JOB = Path(__file__).with_name("optimizers_job.py")
job = load_job(JOB)
IN_PARTS = "deepspeed_stage_3_in_parts"
STRATEGIES = ["ddp", "fsdp", "hsdp", *(f"deepspeed_stage_{stage}" for stage in range(4)), IN_PARTS]
PAIRS = [(s, o) for s in STRATEGIES for o in ("muon", "low", "low-muon")]
USUAL = [
    *((s, "muon") for s in ("ddp", "fsdp", IN_PARTS)),
    *((s, "low") for s in ("fsdp", "deepspeed_stage_2")),
    ("deepspeed_stage_1", "low-muon"),
]
EXACT = ["ddp", "fsdp", "deepspeed_stage_2", IN_PARTS]  # compared with one device
META = ["fsdp", "deepspeed_stage_3"]  # the optimizer gets a model that is sharded before it has values
READS = [("fsdp", "ddp"), (IN_PARTS, "fsdp"), ("ddp", IN_PARTS)]


def title(strategy: str, optimizer: str) -> str:
    return f"{strategy}-{optimizer}"


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory) -> Path:
    """Where two ranks trained, and then one device."""
    place = tmp_path_factory.mktemp("optimizers")
    pairs = PAIRS if request.config.getoption("--soak") else USUAL
    cases = {title(*pair): {"strategy": pair[0], "optimizer": pair[1]} for pair in pairs}
    cases |= {f"{s}-meta": {"strategy": s, "optimizer": "muon", "meta": True, "steps": 2} for s in META}
    for reader, writer in READS:
        source = f"{writer}-muon/parts/1/checkpoints/step-00000003"
        cases[f"{reader}-of-{writer}"] = {"strategy": reader, "optimizer": "muon", "source": source}
    found = run_cases(JOB, place, cases, one_pair=True)
    assert {name: notes[0]["error"] for name, notes in found.items() if "error" in notes[0]} == {}
    for optimizer in ("muon", "low", "adamw"):
        job.fit(place / "single", optimizer, "single", {"optimizer": optimizer}, devices=1)
    return place


def final(folder: Path, case: str, name: str = "parts") -> dict[str, torch.Tensor]:
    return stored_tensors(Run(folder / case / name / "1").latest)


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        torch.testing.assert_close(
            found[name], value, rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize(("strategy", "optimizer"), soaked(PAIRS, USUAL))
def test_a_run_that_was_stopped_and_resumed_is_bit_identical(folder, strategy, optimizer):
    case = title(strategy, optimizer)
    assert Run(folder / case / "parts" / "1").checkpoints[0].name == "step-00000003"
    same(final(folder, case), final(folder, case, "whole"), 0)


@pytest.mark.parametrize("strategy", soaked(EXACT, [s for s, o in USUAL if o == "muon"]))
def test_muon_on_uneven_parts_equals_muon_on_one_device(folder, strategy):
    same(final(folder, f"{strategy}-muon", "whole"), final(folder, "single", "muon"), 1e-6)


@pytest.mark.parametrize("strategy", META)
def test_a_model_that_is_sharded_before_it_has_values_is_split_the_same(folder, strategy):
    groups = [
        stored_state(Run(folder / case / "whole" / "1").latest)["optimizers"]["0"]["groups"]
        for case in (f"{strategy}-meta", "ddp-muon")
    ]
    assert [group["params"] for group in groups[0]] == [group["params"] for group in groups[1]]
    assert groups[0][0]["params"] == ["blocks.0.weight", "blocks.1.weight", "gate.weight"]


@pytest.mark.parametrize(("reader", "writer"), READS)
def test_a_muon_checkpoint_of_one_strategy_is_continued_by_another(folder, reader, writer):
    same(final(folder, f"{reader}-of-{writer}"), final(folder, "single", "muon"), 1e-6)


@pytest.mark.parametrize("strategy", soaked(EXACT[:3], [s for s, o in USUAL if o == "low"]))
def test_moments_are_kept_and_written_in_bfloat16(folder, strategy):
    found, exact = final(folder, f"{strategy}-low", "whole"), final(folder, "single", "adamw")
    assert found.keys() == exact.keys()
    moments = [name for name in found if name.endswith(("exp_avg", "exp_avg_sq"))]
    assert len(moments) == 18
    assert {found[name].dtype for name in moments} == {torch.bfloat16}
    assert {value.dtype for name, value in found.items() if name not in moments} == {torch.float32}
    weights = [name for name in found if name.startswith("model.")]
    apart = max((found[name] - exact[name]).abs().max().item() for name in weights)
    # Two moments, each right to 2**-8 of itself after a rounding: of 6 updates of at most 0.02.
    assert 0 < apart < 6 * 0.02 * 2 * 2**-8
