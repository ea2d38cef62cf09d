"""Counters, clock and limits, each built without a Trainer."""

import time

from helpers.planted_clock import PlantedClock

from paceline.durations import Cadence, Duration, StepPosition
from paceline.trainer.state import Clock, Limits, TrainState


def test_a_state_restores_what_it_saved_and_keeps_defaults_for_what_an_older_one_lacks():
    state = TrainState(global_step=7, epoch=2, samples=112, weight_reference=0.5)
    again = TrainState()
    again.load_state_dict({k: v for k, v in state.state_dict().items() if k != "skipped_steps"})
    assert again == state


def test_the_position_after_a_step_and_at_the_boundary_after_an_epoch():
    state, limits = TrainState(global_step=10, epoch=2, epoch_start=8, position=32), Limits()
    limits.set_epoch_length(4)
    assert state.after_step(False, limits) == StepPosition(10, 2, 2, False, 4)
    assert state.at_boundary(limits) == StepPosition(10, 2, 2, False, 4)
    state.epoch += 1
    state.begin_epoch()  # the epoch is counted already, and the boundary still belongs to it
    assert state.at_boundary(limits) == StepPosition(10, 2, 4, True, 4)
    assert Cadence(Duration.parse("1ep"), 4).due(state.at_boundary(limits), time.perf_counter)


def test_the_clock_counts_between_start_and_stop_and_adds_earlier_sessions(monkeypatch):
    now = PlantedClock()
    monkeypatch.setattr(time, "perf_counter", now)
    state = TrainState(elapsed=100.0)
    clock = Clock(state)
    assert clock.seconds() == 100.0
    clock.start()
    now.now += 2
    assert clock.seconds() == 102.0
    now.now += 3
    clock.stop()
    now.now += 10
    assert clock.seconds() == state.elapsed == 105.0


def test_without_any_limit_it_is_one_epoch():
    limits = Limits()
    assert limits.unlimited
    assert limits.max_epochs == 1
    assert limits.total_steps is None
    limits.set_epoch_length(5)
    assert limits.total_steps == 5
    assert limits.reached(TrainState(epoch=0), Clock(TrainState())) is None
    assert limits.reached(TrainState(epoch=1), Clock(TrainState())) == "max_epochs=1 reached"


def test_epochs_of_different_lengths_are_added_up():
    limits = Limits(max_epochs=6)
    limits.set_epoch_length(10)
    limits.set_epoch_length(5, epoch=2)
    limits.set_epoch_length(3, epoch=9)
    assert [limits.steps_in(epoch) for epoch in (0, 1, 2, 8, 9)] == [10, 10, 5, 5, 3]
    assert limits.total_steps == 2 * 10 + 4 * 5
    again = Limits(max_epochs=6)
    again.set_lengths(limits.lengths)
    assert again.total_steps == limits.total_steps
    again.set_lengths([[4, 3]])  # of a checkpoint that somebody changed
    assert again.steps_in(0) is None
    limits.set_epoch_length(None, epoch=4)
    assert limits.total_steps is None


def test_the_first_limit_reached_is_named():
    limits = Limits(max_steps=10, max_epochs=3, max_time="1min", max_seconds=60.0)
    limits.set_epoch_length(5)
    assert limits.total_steps == 10
    assert limits.reached(TrainState(global_step=10), Clock(TrainState())) == "max_steps=10 reached"
    late = Clock(TrainState(elapsed=60.0))
    assert limits.reached(TrainState(global_step=9), late) == "max_time=1min reached"
