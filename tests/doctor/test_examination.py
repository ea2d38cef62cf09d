"""Strategies that are sick, on real ranks: the doctor finds what each of them has."""

from pathlib import Path

import psutil
import pytest
from helpers.jobs import load_job

from paceline import PacelineError
from paceline.doctor.examination import Examination
from paceline.strategies.machine.backends import usual_strategies
from paceline.testing import ranks

pytestmark = pytest.mark.launch
sick = load_job(Path(__file__).with_name("sick_strategies.py"))
SECONDS = 300  # on a machine that is busy; the rank that hangs says so at once
CHECKS = ["world", "ranks' clocks", "collectives", "data order", "training step", "checkpoint"]


def outcomes(findings, strategy):
    return {one.check: one for one in findings if one.strategy == strategy}


@pytest.fixture(scope="module")
def findings(request):
    """Of several strategies on ranks that are started again only after those that end early."""
    makers = ["ddp", sick.WrongSum, sick.OtherStep, sick.Rounds, sick.Hangs]
    if request.config.getoption("--soak"):
        makers.insert(3, sick.LosesTensor)
    examination = Examination(makers, devices=2, accelerator="cpu", seconds=SECONDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "_AFTER_A_FAILURE", SECONDS)  # for a rank to see that the other one is gone
        return examination.run()


def test_a_strategy_in_order(findings):
    found = outcomes(findings, "ddp")
    assert list(found) == CHECKS
    assert {one.outcome for one in found.values()} == {"ok"}, found
    assert "2 ranks on cpu" in found["world"].found


@pytest.mark.parametrize(
    ("strategy", "check", "said"),
    [
        ("WrongSum", "collectives", "all_reduce(op='sum') gives"),
        ("OtherStep", "training step", "the ranks no longer hold the same parameters"),
        pytest.param("LosesTensor", "training step", "weights: first.bias missing", marks=pytest.mark.soak),
        ("Rounds", "checkpoint", "after reading that of one device,"),
        ("Hangs", "data order", f"rank 1 hangs for {SECONDS} s in backward ("),
    ],
)
def test_a_sick_strategy(findings, strategy, check, said):
    found = outcomes(findings, strategy)
    assert found[check].outcome == "FAILED", found
    assert said in found[check].found, found[check]
    assert found[check].cure
    before = CHECKS[: CHECKS.index(check)]
    assert {found[name].outcome for name in before} <= {"ok"}, found


def test_what_was_not_reached_is_skipped_and_no_process_is_left(findings):
    found = outcomes(findings, "Hangs")
    assert {found[check].outcome for check in ("training step", "checkpoint")} == {"skipped"}
    assert any("sick_strategies.py" in line for line in found["data order"].details)
    commands = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if sick.MARK in command]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("strategy", "check", "said"),
    [
        (sick.OtherOrder, "data order", "order"),
        (sick.IsKilled, "data order", "rank 1 was killed by SIGKILL"),
    ],
)
def test_more_sick_strategies(strategy, check, said):
    found = outcomes(Examination([strategy], devices=2, seconds=SECONDS).run(), strategy.__name__)
    assert (found[check].outcome, said in found[check].found) == ("FAILED", True), found


@pytest.mark.soak
def test_the_usual_strategies_and_a_single_device():
    found = Examination(["single", *usual_strategies()], devices=2, accelerator="cpu").run()
    assert not [one for one in found if one.outcome == "FAILED"]
    assert outcomes(found, "single").keys() == set(CHECKS)


def test_a_world_that_a_launcher_made_too_small(monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 3, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 3}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29511")
    found = Examination(["ddp"], devices=2, accelerator="cpu").run()
    assert found[0].check == "launcher"
    assert found[0].outcome == "FAILED"
    assert {one.outcome for one in found if one.strategy == "ddp"} == {"skipped"}


def test_names_are_checked_before_anything_else():
    with pytest.raises(PacelineError, match="there is no 'dpp'"):
        Examination(["dpp"]).run()
