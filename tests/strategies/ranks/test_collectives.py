"""No hidden collective: a step calls what the strategy's algorithm needs, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.jobs import load_job
from helpers.pairwise import soaked
from helpers.ranks import run_ranks

pytestmark = pytest.mark.launch  # for its length

JOB = Path(__file__).with_name("collectives_job.py")
SECONDS = 150
job = load_job(JOB)
N = job.BLOCKS
ON_FOUR = ["hsdp-1", "hsdp-3", "hsdp-clip"]
# One micro-batch is a part of three; stages 0 and 1 are what DeepSpeed does less of.
SOAK = {"ddp-1", "ddp-small-buckets-1", "torch-ddp-small-buckets-1", "fsdp-1", "hsdp-1", "hsdp-clip"}
SOAK |= {f"{own}zero-{stage}-3" for own in ("", "own-") for stage in (0, 1)} | {"fsdp-weighted"}


@pytest.fixture(scope="session")
def counts(request, tmp_path_factory):
    """Collectives a step by case and kind."""
    folders: dict[int, Path] = {}
    left_out = set() if request.config.getoption("--soak") else SOAK

    def of(name: str) -> dict[str, float]:
        ranks = 4 if name in ON_FOUR else 2
        if ranks not in folders:
            folders[ranks] = tmp_path_factory.mktemp(f"ranks-{ranks}")
            names = ON_FOUR if ranks == 4 else [n for n in job.every_case() if n not in ON_FOUR]
            names = [name for name in names if name not in left_out]
            place = folders[ranks]
            run_ranks(JOB, ranks, ranks, place, *names, folder=place, seconds=SECONDS)
        return json.loads((folders[ranks] / "counts.json").read_text())[name]

    return of


@pytest.mark.parametrize("name", soaked(["ddp-1", "ddp-3", "ddp-clip"], ["ddp-3", "ddp-clip"]))
def test_ddp_reduces_each_bucket_once_however_many_micro_batches(counts, name):
    assert counts(name) == {"all_reduce": 1}


@pytest.mark.parametrize("micro_batches", soaked([1, 3], [3]))
def test_ddp_has_as_many_collectives_as_torch_has_buckets(counts, micro_batches):
    small = counts(f"ddp-small-buckets-{micro_batches}")
    assert small == counts(f"torch-ddp-small-buckets-{micro_batches}")
    assert small["all_reduce"] > 2


def test_ddp_with_unused_parameters_averages_in_one(counts):
    assert counts("ddp-unused") == {"all_reduce": 1}


def test_ddp_broadcasts_buffers_no_more_than_torch_does(counts):
    found, allowed = counts("ddp-buffers"), counts("torch-ddp-buffers")
    assert found["all_reduce"] == allowed["all_reduce"] == 1
    assert found.get("broadcast", 0) <= allowed["broadcast"]


def test_ddp_broadcasts_no_buffers_where_that_is_switched_off(counts):
    assert counts("ddp-own-buffers") == {"all_reduce": 1}


def test_ddp_under_manual_optimization_has_one_for_each_backward(counts):
    """Ranks agree first, at two backwards and two updates, on what is to be averaged: a word each."""
    assert counts("ddp-manual") == {"all_reduce": 2, "send": 4, "recv": 4}


FINITE = 1  # a word: whether a gradient is not finite, where no norm of all gradients is reduced


@pytest.mark.parametrize("micro_batches", soaked([1, 3], [3]))
def test_fsdp_gathers_twice_a_micro_batch_and_reduces_once(counts, micro_batches):
    """Each block before forward and before backward, the root once; gloo reduces by all_reduce."""
    expected = {"all_gather": micro_batches * (2 * N + 1), "all_reduce": N + 1 + FINITE}
    assert counts(f"fsdp-{micro_batches}") == expected


def test_fsdp_that_keeps_what_it_gathered_gathers_once_a_micro_batch(counts):
    assert counts("fsdp-kept") == {"all_gather": 3 * (N + 1), "all_reduce": N + 1 + FINITE}


@pytest.mark.parametrize("micro_batches", soaked([1, 3], [3]))
def test_hsdp_reduces_within_its_groups_and_between_them(counts, micro_batches):
    expected = {"all_gather": micro_batches * (2 * N + 1), "all_reduce": 2 * (N + 1) + FINITE}
    assert counts(f"hsdp-{micro_batches}") == expected


@pytest.mark.parametrize(
    ("name", "reductions"),
    [("fsdp-clip", N + 2), pytest.param("hsdp-clip", 2 * (N + 1) + 1, marks=pytest.mark.soak)],
)
def test_clipping_sharded_gradients_costs_one_which_checks_them_too(counts, name, reductions):
    assert counts(name) == {"all_gather": 2 * N + 1, "all_reduce": reductions}


@pytest.mark.parametrize("stage", soaked(range(4), [2, 3]))
def test_zero_has_deepspeed_s_own(counts, stage):
    assert counts(f"zero-{stage}-3") == counts(f"own-zero-{stage}-3")


@pytest.mark.parametrize(
    ("weighted", "plain", "words"),
    [
        ("ddp-weighted", "ddp-3", 1),
        pytest.param("fsdp-weighted", "fsdp-3", 1, marks=pytest.mark.soak),
        ("zero-2-weighted", "zero-2-3", 1),
    ],
)
def test_a_weighted_loss_costs_one_word(counts, weighted, plain, words):
    found, usual = counts(weighted), counts(plain)
    assert found == usual | {"send": words, "recv": words}


def test_words_about_stopping_are_few_when_steps_are_fast(counts):
    assert 1 <= counts("stop-word")["words"] <= job.WORDS // 10
