"""Durations are read from what people write, and fall due exactly when they should."""

import math
from datetime import timedelta
from fractions import Fraction

import pytest
from helpers.messages import refusal, says

from paceline.durations import Cadence, Duration, StepPosition


@pytest.mark.parametrize(
    ("written", "amount", "unit"),
    [
        (500, 500, "st"),
        ("500", 500, "st"),
        ("500st", 500, "st"),
        (" 500 st ", 500, "st"),
        ("2ep", 2, "ep"),
        ("0.25ep", Fraction(1, 4), "ep"),
        ("0.1ep", Fraction(1, 10), "ep"),  # exact, where a float is not
        ("30s", 30, "s"),
        ("0.5s", Fraction(1, 2), "s"),
        ("30min", 1800, "s"),
        ("1.5h", 5400, "s"),
        ("1d", 86400, "s"),
        ("00:30:00", 1800, "s"),
        ("30:00:00", 108000, "s"),
        ("1:02:03:04", 93784, "s"),
        (timedelta(minutes=2), 120, "s"),
        (timedelta(milliseconds=1500), Fraction(3, 2), "s"),
        (Duration(Fraction(3), "ep"), 3, "ep"),
    ],
)
def test_what_is_read(written, amount, unit):
    assert Duration.parse(written) == Duration(Fraction(amount), unit)


@pytest.mark.parametrize(
    "written",
    [
        0, -1, "0st", "0ep", "-1ep", "0:00:00", timedelta(0), timedelta(seconds=-1),
        True, False, None, 1.5, "1.5", "0.5st", "", "ep", "2 weeks", "2 epochs", "1e3", "inf", "nan",
        "00:30", "1:2:3", "1h30min", [], {},
    ],
)  # fmt: skip
def test_what_is_refused(written):
    text = refusal(Duration.parse, written, where="log_every")
    assert "log_every is not a duration" in text
    assert f"got: {written if isinstance(written, str) else repr(written)}" in text
    assert '"0.25ep"' in text


@pytest.mark.parametrize("written", ["500st", "2ep", "0.25ep", "30s"])
def test_it_is_shown_as_it_is_written(written):
    assert str(Duration.parse(written)) == written
    assert Duration.parse(str(Duration.parse(written))) == Duration.parse(written)


def due_steps(every, steps_per_epoch, epochs, clock=lambda: 0.0):
    """The steps at which ``every`` is due; checks on the way that ``next_step`` never looks past one."""
    cadence = Cadence(Duration.parse(every), steps_per_epoch)
    found, step, every_second = [], 0, cadence.every.unit == "s"
    for epoch in range(epochs):
        for in_epoch in range(1, steps_per_epoch + 1):
            earliest = cadence.next_step(StepPosition(step, epoch, in_epoch - 1))
            step += 1
            ended = in_epoch == steps_per_epoch
            if cadence.due(StepPosition(step, epoch, step - epoch * steps_per_epoch, ended), clock):
                found.append(step)
                assert earliest <= step or ended, f"{every}: step {step} would have been passed over"
            elif not every_second:
                assert earliest > step, f"{every}: step {step} was looked at in vain"
    return found


@pytest.mark.parametrize(
    ("every", "steps_per_epoch", "epochs", "expected"),
    [
        (3, 4, 3, [3, 6, 9, 12]),  # steps run through the epochs
        (1, 2, 2, [1, 2, 3, 4]),
        ("1ep", 4, 3, [4, 8, 12]),
        ("2ep", 4, 5, [8, 16]),
        ("0.5ep", 4, 2, [2, 4, 6, 8]),
        ("0.25ep", 10, 2, [3, 5, 8, 10, 13, 15, 18, 20]),
        ("0.1ep", 10, 1, list(range(1, 11))),
        ("1.5ep", 4, 3, [6, 12]),
        ("0.25ep", 2, 2, [1, 2, 3, 4]),  # more often than there are steps: once a step
        ("0.3ep", 1, 3, [1, 2, 3]),
    ],
)
def test_when_it_is_due(every, steps_per_epoch, epochs, expected):
    assert due_steps(every, steps_per_epoch, epochs) == expected


def test_time_counts_from_the_last_time():
    times = iter([4.0, 9.9, 10.0, 12.0, 19.9, 21.0, 30.9, 31.0])
    assert due_steps("10s", 8, 1, clock=lambda: next(times)) == [3, 6, 8]


def test_the_clock_is_not_asked_where_time_does_not_count():
    def clock():
        raise AssertionError("asked")

    assert due_steps("0.5ep", 4, 1, clock) == [2, 4]
    assert due_steps(2, 4, 1, clock) == [2, 4]
    assert due_steps("1ep", 4, 1, clock) == [4]


@pytest.mark.parametrize("every", ["0.25ep", "1.5ep"])
def test_a_part_of_an_epoch_of_unknown_length(every):
    says(refusal(Cadence, Duration.parse(every), None), f"{every} is a part of an epoch", '"500st"')


def test_whole_epochs_need_no_length():
    cadence = Cadence(Duration.parse("2ep"), None)
    assert [cadence.due(StepPosition(9, epoch, 3, True), lambda: 0.0) for epoch in range(4)] == [
        False,
        True,
        False,
        True,
    ]
    assert not cadence.due(StepPosition(9, 1, 3), lambda: 0.0)
    assert cadence.next_step(StepPosition(9, 1, 3)) == math.inf
