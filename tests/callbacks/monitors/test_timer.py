"""Timer: by a clock that only user code moves, what belongs to which phase; and resumed runs."""

import time

import pytest
import torch
from helpers.planted_clock import PlantedClock, TimedNet, fit
from helpers.stops import StopsAt

from paceline import PacelineError, Trainer
from paceline.callbacks import Checkpoint, Timer


@pytest.fixture
def clock(monkeypatch):
    clock = PlantedClock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


def spent(timer):
    return [timer.seconds(phase) for phase in ("train", "data", "validation", "save")]


def test_each_second_belongs_to_one_phase(clock, capsys):
    timer = Timer()
    trainer = fit(clock, timer, Checkpoint(every=1))
    assert spent(timer) == [4 * 10 + 8 * 1, 8, 2 * 300, 4 * 7000]  # not the sanity pass
    published = [trainer.metrics[f"time/{n}_seconds"] for n in ("train", "data", "validation", "save")]
    assert published == [48, 8, 600, 3 * 7000]
    assert "time: 48.0 s training (17 % waiting for data), 10:00 validation, 7:46:40 saving" in (
        capsys.readouterr().out.splitlines()
    )


def test_what_a_run_has_not_done_is_not_in_its_line(clock, capsys):
    fit(clock, Timer(), validate_every=None)
    assert "time: 48.0 s training (17 % waiting for data)" in capsys.readouterr().out.splitlines()


def test_a_resumed_run_adds_to_the_time_before(clock):
    whole, first, second = Timer(), Timer(), Timer()
    fit(clock, whole, run_dir="whole")
    fit(clock, first, StopsAt(3), Checkpoint(), run_dir="parts")
    assert spent(first)[:3] == [36, 6, 300]
    fit(clock, second, Checkpoint(), run_dir="parts", resume="latest")
    assert spent(second)[:3] == spent(whole)[:3]


def test_a_second_fit_begins_at_zero(clock):
    timer = Timer()
    for _ in range(2):
        fit(clock, timer)
        assert spent(timer)[:3] == [48, 8, 600]


def test_after_an_error_nothing_is_added(clock):
    timer = Timer()
    with pytest.raises(ValueError, match="enough"):
        fit(clock, timer, module=TimedNet(clock, fails_at=1))
    before = spent(timer)
    assert before[:2] == [24, 4]
    Trainer(callbacks=timer, accelerator="cpu", progress=False).validate(
        TimedNet(clock), [torch.ones(2, 3)]
    )
    assert spent(timer) == before


@pytest.mark.parametrize("name", ["duration", "interval"])
def test_the_limit_is_the_trainer_s(name):
    with pytest.raises(
        PacelineError, match=rf"no argument '{name}'\n  did you mean: Trainer\(max_time=\.\.\.\)\?"
    ):
        Timer(**{name: "00:12:00:00"})


def test_an_unknown_phase_is_an_error():
    with pytest.raises(PacelineError, match="did you mean 'validation'"):
        Timer().seconds("validaton")
