"""docs/guides/precision.md: each precision under each strategy trains as float32 does, or is refused.

And each is resumed bit-identically. By default each strategy does so in some of the precisions, and each
precision under some of the strategies; ``--soak`` takes all pairs. It runs with the launchers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.jobs import load_job
from helpers.pairwise import covering, soaked
from helpers.ranks import run_cases

from paceline.strategies import PRECISIONS, make_precision
from paceline.strategies.options import precisions

pytestmark = pytest.mark.launch
JOB = Path(__file__).with_name("precision_job.py")
STRATEGIES = ("ddp", "fsdp", "hsdp", *(f"deepspeed_stage_{stage}" for stage in range(4)))
# How far the loss of any of 50 steps may be from that of float32 on one device, which falls to 0.4.
BOUNDS = {"32": 1e-4, "64": 1e-4, "bf16": 6e-3, "fp16": 1e-3, "bf16-true": 0.15, "fp16-true": 2e-3}
# AdamW divides by the square root of squared gradients, which float16 has only down to 6e-8.
OPTIMIZERS = {precision: "sgd" if precision == "fp16-true" else "adamw" for precision in PRECISIONS}
TRAINED = [precision for precision in PRECISIONS if precision != "fp8"]  # test_float8.py
ALLOWED = [
    (strategy, precision)
    for strategy in STRATEGIES
    for precision in TRAINED
    if precision in precisions(strategy.partition("_")[0])
]
REFUSED = [(s, p) for s in STRATEGIES for p in TRAINED if (s, p) not in ALLOWED]
# Those of 16 bits first: of the strategies with all precisions each has one.
USUAL = covering(ALLOWED[::-1], each=1)
ALONE = [(precision, accumulate) for precision in TRAINED for accumulate in (1, 2)]
USUALLY_ALONE = [one for one in ALONE if one[1] == 2]  # ranks are compared with those
RESUMED_ALONE = ["fp16", "bf16-true"]  # the one with a loss scale; the others are resumed on ranks


def run_pairs(request, tmp_path_factory, function: str, every: list, usual: list) -> dict[str, list[dict]]:
    """What two ranks found for each of these, without ``--soak`` for the usual ones."""
    cases = {
        f"{strategy} {precision}": {
            "strategy": strategy,
            "precision": precision,
            "optimizer": OPTIMIZERS[precision],
        }
        for strategy, precision in (every if request.config.getoption("--soak") else usual)
    }
    return run_cases(JOB, tmp_path_factory.mktemp(function), cases, one_pair=True, function=function)


@pytest.fixture(scope="module")
def on_ranks(request, tmp_path_factory):
    return run_pairs(request, tmp_path_factory, "train", ALLOWED + REFUSED, USUAL + REFUSED)


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory):
    job, found = load_job(JOB), {}

    def of(precision: str, optimizer: str, accumulate: int = 1) -> dict:
        case = precision, optimizer, 1, accumulate
        if case not in found:
            found[case] = job.train(tmp_path_factory.mktemp("one"), "single", *case)
        return found[case]

    return of


def check(found: dict, exact: dict, precision: str) -> None:
    """The losses, and the dtypes that the table states."""
    kind = make_precision(precision)
    assert len(found["losses"]) == len(exact["losses"]) == 50
    assert exact["losses"][-1] < 0.2 * exact["losses"][0]
    apart = max(abs(a - b) for a, b in zip(found["losses"], exact["losses"], strict=True))
    assert apart <= BOUNDS[precision]
    assert found["dtypes"] == {
        "parameters": str(kind.param_dtype),
        "moments": str(kind.param_dtype),
        "computed": str(kind.compute_dtype),
    }


@pytest.mark.parametrize(("precision", "accumulate"), soaked(ALONE, USUALLY_ALONE))
def test_on_one_device_it_trains_as_float32_does(on_one_device, precision, accumulate):
    optimizer = OPTIMIZERS[precision]
    check(on_one_device(precision, optimizer, accumulate), on_one_device("32", optimizer), precision)


@pytest.mark.parametrize(("strategy", "precision"), soaked(ALLOWED, USUAL))
def test_on_two_ranks_it_trains_as_float32_does(on_ranks, on_one_device, strategy, precision):
    check(on_ranks[f"{strategy} {precision}"][0], on_one_device("32", OPTIMIZERS[precision]), precision)


@pytest.mark.parametrize(("strategy", "precision"), soaked(ALLOWED, USUAL))
def test_on_two_ranks_it_means_what_it_means_on_one(on_ranks, on_one_device, strategy, precision):
    """The same numbers at the same micro-batch size; float16 weights are rounded after another sum.

    With another micro-batch size CPUs that multiply in 16 bits round differently: kernels depend on shapes.
    """
    many = on_ranks[f"{strategy} {precision}"][0]
    one = on_one_device(precision, OPTIMIZERS[precision], accumulate=2)
    apart = max(abs(a - b) for a, b in zip(many["losses"], one["losses"], strict=True))
    assert apart <= (1e-3 if precision == "fp16-true" else 1e-6)
    assert many["dtypes"] == one["dtypes"]


@pytest.fixture(scope="module")
def resumed(request, tmp_path_factory):
    return run_pairs(request, tmp_path_factory, "resumed", ALLOWED, USUAL)


@pytest.mark.parametrize(("strategy", "precision"), soaked(ALLOWED, USUAL))
def test_a_resumed_run_is_bit_identical(resumed, strategy, precision):
    for found in resumed[f"{strategy} {precision}"]:
        assert len(found["whole"]) == 6
        assert found["rest"] == found["whole"][3:]


@pytest.mark.parametrize("precision", soaked(TRAINED, RESUMED_ALONE))
def test_a_resumed_run_on_one_device_is_bit_identical(precision, tmp_path):
    found = load_job(JOB).resumed(tmp_path, "single", precision, OPTIMIZERS[precision], 1)
    assert found["rest"] == found["whole"][3:]
    assert len(set(found["whole"])) == 6


@pytest.mark.parametrize(("strategy", "precision"), REFUSED)
@pytest.mark.parametrize("rank", [0, 1])
def test_what_a_strategy_does_not_have_is_refused_with_an_alternative(on_ranks, strategy, precision, rank):
    refused = on_ranks[f"{strategy} {precision}"][rank]["refused"]
    assert f"deepspeed has no precision '{precision}'" in refused
    assert f"strategy='fsdp' has '{precision}'" in refused
    assert ("precision='fp16'" in refused) == (precision == "fp16-true")


def test_the_table_is_complete():
    assert {s for s, _ in USUAL} == set(STRATEGIES)
    assert {p for _, p in USUAL} == {p for p, _ in USUALLY_ALONE} == set(TRAINED)
    assert len(ALLOWED) + len(REFUSED) == len(STRATEGIES) * len(TRAINED)
    assert {p for _, p in REFUSED} == {"64", "fp16-true"}
    assert {s.partition("_")[0] for s, _ in REFUSED} == {"deepspeed"}
