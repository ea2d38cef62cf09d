"""What the loggers of experiment trackers share, on one that keeps everything in a list."""

import random
import sys
import threading
import time

import numpy as np
import pytest
from helpers.small_net import Net, data

from paceline import PacelineError, Trainer
from paceline.callbacks import JSONLogger, MLflow, Trackio, WandB
from paceline.callbacks.loggers import tracker
from paceline.callbacks.loggers.media import to_histogram, with_fewer_bins
from paceline.callbacks.loggers.sent_rows import SentRows
from paceline.callbacks.loggers.series import read_rows
from paceline.callbacks.loggers.tracker import Tracker

SECONDS = 60  # until what is waited for is taken for stuck


class Listing(Tracker):
    """Fails where ``fails`` names a method."""

    package = "json"
    place = "a list"

    def __init__(self, fails="", waits=None):
        super().__init__()
        self.fails, self.waits, self.calls = fails, waits, []

    def _do(self, what, *details):
        if self.waits is not None and what == self.waits[0]:
            self.waits[1].wait(SECONDS)
        self.calls.append((what, *details))
        if what == self.fails:
            raise ConnectionError(f"{what} failed")

    def open(self, run):
        self._do("open", run.run_id)
        return run.run_id or "id-1"

    def send(self, row):
        self._do("send", row["step"])

    def close(self, ended):
        self._do("close", ended)


def fit(logger, resume=None, **settings):
    usual = {"max_epochs": 2, "log_every": 1, "progress": False, "accelerator": "cpu", "name": "n"}
    trainer = Trainer(loggers=[logger, "-tensorboard", "-curves"], **usual | settings)
    return trainer.fit(Net(), data(), resume=resume)


def rows(run):
    kept = read_rows(run.folder / "metrics.jsonl")
    return [
        {name: value for name, value in row.items() if name not in ("time", "perf/samples_per_second")}
        for row in kept
    ]


def log(run):
    return (run.folder / "log.txt").read_text()


@pytest.mark.parametrize("logger", [WandB, MLflow, Trackio])
def test_a_package_that_is_missing_is_an_error_before_training(logger, monkeypatch, tmp_path):
    monkeypatch.setattr(logger, "package", "no_such_tracker")
    (tmp_path / "no_such_tracker").mkdir()  # a folder of results is no package
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PacelineError, match=r"pip install no_such_tracker") as error:
        fit(logger())
    assert "it is not installed" in str(error.value)


def test_a_package_that_cannot_be_imported_is_an_error_before_training(monkeypatch, tmp_path):
    (tmp_path / "broken_tracker.py").write_text("import no_such_library")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Listing, "package", "broken_tracker")
    with pytest.raises(PacelineError, match="No module named 'no_such_library'"):
        fit(Listing())


def test_a_package_that_draws_random_numbers_at_its_import_changes_nothing(monkeypatch, tmp_path):
    draws = "import random, numpy; random.random(); numpy.random.rand()"
    (tmp_path / "drawing_tracker.py").write_text(draws)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Listing, "package", "drawing_tracker")
    drawn = []
    for logger in (Listing(), JSONLogger()):
        random.seed(5)
        np.random.seed(5)
        fit(logger)
        drawn.append((random.random(), np.random.rand()))
    assert "drawing_tracker" in sys.modules
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("logger", "arguments"),
    [
        (WandB, {"mode": "ofline"}),
        (WandB, {"tags": "one"}),
        (WandB, {"settings": ["console"]}),
        (WandB, {"resume": "must"}),
        (MLflow, {"tags": {"kind": 1}}),
        (MLflow, {"experiment": ""}),
        (Trackio, {"space_id": 3}),
    ],
)
def test_arguments_that_are_not_right_are_errors(logger, arguments):
    with pytest.raises(PacelineError, match=logger.__name__):
        logger(**arguments)


@pytest.mark.parametrize("fails", ["open", "send", "close"])
def test_a_tracker_that_fails_changes_nothing(fails):
    logger = Listing(fails)
    run = fit(logger, max_epochs=5)
    assert rows(run) == rows(fit(Listing(), max_epochs=5))
    if fails == "close":
        assert "warning: Listing could not end its run: ConnectionError: close failed" in log(run)
        return
    assert log(run).count("Listing could not write a row, and training continues") == 1
    assert log(run).count("Listing failed 10 times in a row: it is switched off") == 1
    assert len([call for call in logger.calls if call[0] == fails]) == 10


def test_a_run_that_opens_too_late_is_closed(monkeypatch):
    monkeypatch.setattr("paceline.trainer.metrics.logger.SECONDS", 0.1)
    free = threading.Event()
    logger = Listing(waits=("open", free))
    fit(logger)
    assert logger.calls == []
    free.set()
    deadline = time.monotonic() + SECONDS
    while len(logger.calls) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert logger.calls == [("open", None), ("close", "finished")]


def test_a_close_that_hangs_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(tracker, "CLOSE_SECONDS", 0.1)
    free = threading.Event()
    run = fit(Listing(waits=("close", free)))
    free.set()
    assert "Listing still sends after 0.1 s and is not waited for" in log(run)


def test_a_run_that_resumes_sends_nothing_twice():
    first, second = Listing(), Listing()
    run = fit(first, max_steps=3, max_epochs=4)
    fit(second, resume="latest", max_epochs=4)
    assert first.calls[0] == ("open", None)
    assert second.calls[0] == ("open", "id-1")
    sent = [step for what, step in first.calls + second.calls if what == "send"]
    assert sent == sorted(sent)
    assert set(sent) == {row["step"] for row in rows(run)}


def test_two_of_a_kind_resume_each_their_own_run():
    class Second(Listing):
        def open(self, run):
            self._do("open", run.run_id)
            return run.run_id or "id-2"

    for resume, known in ((None, (None, None)), ("latest", ("id-1", "id-2"))):
        first, second = Listing(), Second()
        settings = {
            "max_epochs": 2 if resume is None else 4,
            "log_every": 1,
            "progress": False,
            "name": "n",
        }
        Trainer(loggers=[first, second, "-tensorboard", "-curves"], **settings).fit(
            Net(), data(), resume=resume
        )
        assert (first.calls[0], second.calls[0]) == (("open", known[0]), ("open", known[1]))


def test_a_file_that_cannot_be_read_makes_a_new_run(tmp_path):
    for text in ("", "{}", "[1]", '{"run_id": "a", "step": null, "marks": []}'):
        (tmp_path / "t.json").write_text(text)
        assert SentRows(tmp_path / "t.json").run_id is None


def test_what_could_not_be_sent_is_sent_when_it_is_repeated(tmp_path):
    sent = SentRows(tmp_path / "t.json")
    sent.begin("a")
    sent.add(4, ["x"])
    sent.add(4, ["y"])
    sent.take_back()
    resumed = SentRows(tmp_path / "t.json")
    assert resumed.has(3, ["anything"])
    assert resumed.has(4, ["x"])
    assert not resumed.has(4, ["y"])
    assert not resumed.has(5, ["x"])


def test_bins_are_merged_where_a_tracker_takes_fewer():
    histogram = to_histogram(range(1000), bins=700)
    counts, edges = with_fewer_bins(histogram, 512)
    assert len(counts) == len(edges) - 1 == 350
    assert sum(counts) == 1000
    assert (edges[0], edges[-1]) == (0.0, 999.0)
    assert edges == sorted(edges)
    assert with_fewer_bins(to_histogram([1.0, 2.0], bins=2), 512) == ([1, 1], [1.0, 1.5, 2.0])
