"""The stop controller, built without a Trainer: reasons, requests, and what ranks agree on."""

import pytest
import torch

from paceline.strategies import Collectives, Environment
from paceline.trainer.faults.stop_agreement import StopController
from paceline.trainer.state import Clock, Limits, TrainState


class TwoRanks(Collectives):
    """Rank 0 of two; the other one says what the test gives it.

    Attributes:
        other: The word of rank 1: whether it wants to stop, every how many boundaries, microseconds.
        request: The reason and signal of rank 1.
    """

    def __init__(self):
        super().__init__(Environment(torch.device("cpu"), rank=0, world_size=2))
        self.other, self.request = [0, 1, 0], (None, None)
        self.words = 0

    def all_reduce_async(self, values, op="sum"):
        assert op == "max"
        self.words += 1
        return lambda: torch.maximum(values, torch.tensor(self.other))

    def all_gather(self, value):
        return [value, self.request]


def controller(ranks, limits=None, state=None):
    state = state or TrainState()
    return StopController(ranks, state, limits or Limits(max_steps=3), Clock(state))


def test_on_one_device_a_request_counts_at_once_and_the_first_reason_is_kept():
    stop = controller(Collectives())
    assert (stop.done, stop.asked, stop.reason) == (False, False, None)
    stop.request("enough")
    stop.request("later")
    assert (stop.done, stop.asked, stop.reason) == (True, True, "enough")
    assert not stop.interrupted


def test_a_signal_interrupts():
    stop = controller(Collectives())
    stop.request("SIGTERM received", 15)
    assert (stop.interrupted, stop.signal, stop.reason) == (True, 15, "SIGTERM received")


def test_a_limit_is_a_reason_that_nobody_asked_for():
    state = TrainState(global_step=3)
    stop = controller(Collectives(), state=state)
    assert (stop.reason, stop.asked) == ("max_steps=3 reached", False)
    state.validating = "step"  # a validation that was cut short is repeated before the run ends
    assert stop.reason is None


def test_a_new_stage_forgets_the_request_of_the_one_before():
    stop = controller(Collectives())
    stop.request("enough", 15)
    stop.begin_stage()
    assert (stop.reason, stop.signal) == (None, None)


def test_on_several_ranks_a_request_waits_for_the_agreement():
    ranks = TwoRanks()
    stop = controller(ranks)
    stop.begin_stage()
    stop.request("enough")
    assert not stop.done
    stop.agree()
    assert stop.reason == "enough on rank 0"


@pytest.mark.parametrize("signal", [None, 15])
def test_the_request_of_another_rank_stops_this_one(signal):
    ranks = TwoRanks()
    stop = controller(ranks)
    stop.begin_stage()
    ranks.other, ranks.request = [1, 1, 0], ("early stopping", signal)
    stop.agree()
    assert stop.reason == "early stopping on rank 1"
    assert stop.signal == signal
    assert stop.interrupted is (signal is not None)


def test_a_word_is_started_at_one_boundary_and_read_at_the_next():
    ranks = TwoRanks()
    stop = controller(ranks)
    stop.begin_stage()
    ranks.other, ranks.request = [1, 1, 0], ("enough", None)
    stop.at_boundary(batches=1)
    assert (ranks.words, stop.done) == (1, False)
    stop.at_boundary(batches=1)
    assert (ranks.words, stop.done) == (1, True)


@pytest.mark.parametrize("called_after", [(1, 2, 8, 9), (1, 2, 3, 8, 9), range(1, 10)])
def test_words_go_after_the_same_steps_however_often_a_rank_has_events(called_after, monkeypatch):
    monkeypatch.setattr("paceline.trainer.faults.stop_agreement._SECONDS", 0)  # rank 1 says how often
    ranks, state = TwoRanks(), TrainState()
    stop = controller(ranks, state=state)
    stop.begin_stage()
    ranks.other = [0, 6, 0]
    sent = {}
    for state.global_step in called_after:
        stop.at_boundary()
        sent.setdefault(ranks.words, state.global_step)
    assert sent == {1: 1, 2: 8}
    assert state.global_step + stop.next_boundary == 15


def test_time_is_rank_0s_as_of_the_last_agreement():
    ranks, state = TwoRanks(), TrainState()
    stop = controller(ranks, Limits(max_time="1s", max_seconds=1.0), state)
    stop.begin_stage()
    ranks.other = [0, 1, 2_000_000]
    assert stop.reason is None
    stop.agree()
    assert stop.seconds() == 2.0
    assert stop.reason == "max_time=1s reached"
