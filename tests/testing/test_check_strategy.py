"""The check of strategies that other packages run: ours pass it, broken ones fail by the right promise."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from helpers.jobs import load_job

from paceline import PacelineError
from paceline.strategies import DDP, FSDP, DeepSpeed, Single
from paceline.testing import check_strategy
from paceline.testing.check import PROMISES

pytestmark = pytest.mark.launch
broken = load_job(Path(__file__).with_name("broken_strategies.py"))
LONG = pytest.mark.soak
MARK = broken.MARK


class Mine(DDP):
    """Of a module that pytest loaded from its file."""


def broken_promises(make_strategy, **options) -> dict[str, str]:
    """The sentences by promise."""
    with pytest.raises(AssertionError) as caught:
        check_strategy(make_strategy, **options)
    text = str(caught.value).partition("\n-- the output")[0]
    assert "breaks what is promised:\n" in text
    return dict(re.findall(r"^  ([\w ]+): (.+)$", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("make_strategy", "options"),
    [
        pytest.param(Mine, {}, marks=LONG),
        pytest.param("single", {"world_size": 1}, marks=LONG),
        pytest.param(partial(DDP, bucket_cap_mb=1), {"world_size": 3}, marks=LONG),
        pytest.param(FSDP, {}, marks=LONG),
        pytest.param(partial(DeepSpeed, 2), {"precision": "32"}, marks=LONG),
        pytest.param(broken.Average, {}, marks=LONG),
    ],
)
def test_a_right_strategy_passes(make_strategy, options):
    drawn = torch.get_rng_state()
    check_strategy(make_strategy, **options)
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize(
    ("make_strategy", "promises", "sentence"),
    [
        pytest.param(
            broken.NoAverage,
            {"training"},
            r"the loss of step 2 is 0\.\d+, and 0\.\d+ on one device",
            marks=LONG,
        ),
        pytest.param(
            broken.WrongWhole,
            {"export"},
            r"\.bias of the export has shape \[1\], and \[7\] in",
            marks=LONG,
        ),
        pytest.param(broken.OwnSamples, {"validation"}, r"val/samples is \d+\.0, and 7 where", marks=LONG),
        pytest.param(
            broken.RoundedCheckpoint, {"checkpoint"}, r"after resuming, the loss of step 3", marks=LONG
        ),
        pytest.param(broken.LastMicroBatch, {"accumulation"}, r"the loss of step 2 is", marks=LONG),
        pytest.param(broken.NoClipping, {"clipping"}, r"with gradients clipped by norm, the", marks=LONG),
        pytest.param(
            broken.WrongOrder,
            {"collectives"},
            r"all_gather of objects gives \[\{'rank': 1\}, \{'rank': 0\}\] on rank 0, and",
            marks=LONG,
        ),
        (broken.WrongBroadcast, {"collectives"}, r"broadcast\(source=1\) gives"),  # all sections run
        pytest.param(
            broken.LosesMoments,
            {"checkpoint"},
            r"after resuming, the loss of step \d is .* in the uninterrupted run",
            marks=LONG,
        ),
        pytest.param(broken.UnseenNaN, {"nonfinite"}, r"where a loss of rank 1 is NaN, each", marks=LONG),
        pytest.param(
            broken.OneRankFails, {"training"}, r"rank 1 ended with ValueError: as asked", marks=LONG
        ),
        pytest.param(broken.Refuses, {"collectives"}, r"PacelineError: this device is not", marks=LONG),
    ],
)
def test_a_broken_strategy_fails_by_the_right_promise(make_strategy, promises, sentence):
    found = broken_promises(make_strategy)
    unchecked = found.pop("not checked after that", "").split(", ")
    assert re.search(sentence, found[next(iter(promises))]), found
    assert found.keys() | set(unchecked) <= PROMISES.keys() | {""}
    assert found.keys() == promises


@LONG
def test_no_process_outlives_the_deadline():
    found = broken_promises(broken.Hangs, seconds=8)
    assert any("did not end in time, or was killed" in sentence for sentence in found.values()), found
    commands = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if MARK in command]


def test_what_ranks_cannot_import_is_refused():
    def local():
        return Single()

    for strategy in (local, lambda: Single()):
        with pytest.raises(PacelineError, match="other processes cannot import this function"):
            check_strategy(strategy)


def test_arguments_are_checked_together():
    with pytest.raises(PacelineError) as caught:
        check_strategy("ddp", world_size=0, precision="16", tolerance=-1, seconds="soon")
    assert "4 invalid arguments" in str(caught.value)


def test_a_name_that_is_not_installed():
    with pytest.raises(PacelineError, match="there is no 'no-such'"):
        check_strategy("no-such")
