"""The metric logger, built without a Trainer."""

import pytest

from paceline import PacelineError
from paceline.callbacks import Logger
from paceline.strategies import Collectives
from paceline.trainer.metrics.logger import MetricLogger
from paceline.trainer.metrics.logger_queue import LoggerQueue
from paceline.trainer.metrics.store import MetricStore
from paceline.trainer.state import Clock, TrainState


class Writes(Logger):
    background = False

    def __init__(self, write):
        self.write = write

    def write(self, row):
        raise NotImplementedError


@pytest.fixture
def rows():
    return []


@pytest.fixture
def lines():
    return []


@pytest.fixture
def logger(rows, lines):
    state = TrainState(global_step=3, epoch=1, samples=24)
    queue = LoggerQueue(Writes(rows.append), lines.append)
    return MetricLogger(Collectives(), state, Clock(state), [queue], lines.append)


def test_published_values_are_the_latest_and_a_row(logger, rows):
    logger.log("loss", 2.0, weight=1)
    logger.log("loss", 5.0, weight=3)
    logger.publish(logger.train.close_window())
    position = {"step": 3, "epoch": 1, "time": 0.0, "samples": 24}
    assert rows == [position | {"train/loss": 4.25}]
    assert logger.latest == {"train/loss": 4.25}
    assert logger.require("train/loss", "Nobody") == 4.25


def test_an_empty_window_is_no_row(logger, rows):
    logger.publish(logger.train.close_window())
    assert rows == []


def test_a_value_that_was_never_logged_is_an_error_that_names_the_nearest(logger):
    logger.publish({"train/accuracy": 0.5})
    with pytest.raises(PacelineError, match="did you mean: train/accuracy"):
        logger.require("train/acuracy", "EarlyStopping")


def test_values_of_an_evaluation_go_to_its_own_store(logger):
    store = MetricStore("val", print)
    with logger.logging_to(store):
        assert logger.is_evaluating
        logger.log("loss", 1.0)
    assert not logger.is_evaluating
    assert store.close_epoch() == {"val/loss": 1.0}
    assert logger.train.close_window() == {}


def test_nothing_of_a_sanity_pass_stays(logger):
    logger.latest["train/loss"] = 1.0
    with logger.nothing_published() as latest:
        assert not logger.publishes
        latest["val/loss"] = 9.0
    assert logger.publishes
    assert logger.latest == {"train/loss": 1.0}


def test_a_full_disk_is_reported_and_the_run_continues(logger, lines):
    def full(row):
        raise OSError(28, "No space left on device")

    logger._queues.insert(0, LoggerQueue(Writes(full), lines.append))
    logger.publish({"train/loss": 1.0})
    assert "No space left" in lines[0]
    assert logger.latest == {"train/loss": 1.0}


def test_what_each_hook_logs_is_published_after_it(logger, rows):
    def first(trainer):
        logger.log("a", 1.0)

    def second(trainer):
        assert logger.latest["train/a"] == 1.0
        logger.log("b", 2.0)

    logger.publish_each([first, second], None)
    assert [sorted(set(row) - {"step", "epoch", "time", "samples"}) for row in rows] == [
        ["train/a"],
        ["train/b"],
    ]


def test_its_state_is_what_a_new_one_needs(logger):
    logger.latest["val/loss"] = 3.0
    logger.log("loss", 2.0)
    state = logger.state_dict()
    assert state["latest"] == {"val/loss": 3.0}
    assert list(state["train"]) == ["train/loss"]
