"""The watchdog, built without a Trainer: phases, deadlines, and that progress keeps it quiet."""

import sys
import time
from types import SimpleNamespace

import pytest

from paceline.strategies import Collectives
from paceline.strategies.ranks import recursive_doubling
from paceline.trainer.faults import watchdog as module
from paceline.trainer.faults.watchdog import PHASES, Watchdog, deadlines
from paceline.trainer.state import TrainState


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Watchdogs that note their verdict where they would end the process, and are closed afterwards."""
    open_ones, lines, ends = [], [], []
    monkeypatch.setattr(module, "end_at_once", ends.append)

    def make(seconds, state=None):
        folder = SimpleNamespace(path=tmp_path, log_line=lambda text, console=True: lines.append(text))
        open_ones.append(Watchdog(Collectives(), state or TrainState(), folder, seconds))
        return open_ones[-1], lines, ends

    yield make
    for one in open_ones:
        one.close()


@pytest.mark.parametrize(
    ("timeouts", "world", "expected"),
    [
        (None, 1, {}),
        (None, 2, dict.fromkeys(PHASES, 1800.0)),
        (False, 2, {}),
        ("10s", 1, dict.fromkeys(PHASES, 10.0)),
        (
            {"step": "5s", "save": False},
            1,
            {"start": 1800.0, "first_step": 1800.0, "step": 5.0, "validation": 1800.0},
        ),
    ],
)
def test_deadlines_by_phase(timeouts, world, expected):
    assert deadlines(timeouts, world) == expected


def test_without_deadlines_there_is_no_thread(made):
    watchdog, _, _ = made({})
    with watchdog.during("save"):
        assert watchdog.phase == "save"
    assert watchdog.phase == "start"


def test_no_progress_is_reported_with_the_phase_and_ends_the_process(made):
    _, lines, ends = made({"start": 0.2})
    deadline = time.monotonic() + 60
    while not ends and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ends[0] == 1
    assert "rank 0 is stuck: no progress" in lines[0]
    assert "(start)" in lines[0]


class Clock:
    """In the place of ``time.monotonic``; a round of the watchdog looks at it twice at most."""

    now, looks = 0.0, 0

    def __call__(self):
        self.looks += 1
        return self.now

    def pass_rounds(self):
        """Wait for two rounds of the watchdog."""
        looks, deadline = self.looks, time.monotonic() + 60
        while self.looks < looks + 5:
            assert time.monotonic() < deadline
            time.sleep(0.005)


@pytest.mark.fit  # for its length
def test_counters_and_beats_are_progress(made, monkeypatch):
    """More than four seconds pass, of which none is without progress."""
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))
    state = TrainState()
    watchdog, lines, ends = made({"start": 1.0, "step": 1.0, "first_step": 1.0}, state)
    with watchdog.during("step"):
        for number in range(5):
            clock.pass_rounds()
            clock.now += 0.95
            clock.pass_rounds()
            if number % 2:
                state.global_step += 1
            else:
                watchdog.beat()
    assert (lines, ends) == ([], [])


def test_a_rank_in_a_collective_of_the_strategies_waits(monkeypatch):
    frames = []
    monkeypatch.setattr(recursive_doubling, "_rounds", lambda group: frames.append(sys._getframe(1)) or ())
    monkeypatch.setattr(recursive_doubling.dist, "get_rank", lambda group=None: 0)
    assert recursive_doubling.all_gather("alone", None) == ["alone"]
    assert module._doing(frames[0], "in a step")[2]
    assert not module._doing(sys._getframe(), "in a step")[2]
