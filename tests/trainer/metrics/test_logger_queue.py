"""Rows go to loggers without a wait; one that fails or blocks costs its own rows and nothing else."""

import threading

import pytest
import torch
from helpers.loggers import NO_DEFAULTS
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import JSONLogger, Logger
from paceline.callbacks.loggers.series import read_rows
from paceline.trainer.metrics import logger_queue
from paceline.trainer.metrics.logger_queue import LoggerQueue

SECONDS = 60  # until what is waited for is taken for stuck


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(1, 1)

    def training_step(self, batch):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(folder, *loggers):
    data = DataLoader(TensorDataset(torch.linspace(0, 1, 40).reshape(40, 1)), 2)
    trainer = Trainer(
        run_dir=folder, name="n", accelerator="cpu", progress=False, log_every=1, max_epochs=1,
        loggers=[*loggers, "-tensorboard", "-curves"],
    )  # fmt: skip
    module = Net()
    run = trainer.fit(module, data)
    return run, module, (run.folder / "log.txt").read_text()


class Raises(Logger):
    """Fails from a row on, for so many rows."""

    def __init__(self, first=3, count=10**9):
        self.first, self.last, self.rows, self.calls = first, first + count, [], 0

    def write(self, row):
        self.calls += 1
        if self.first <= self.calls < self.last:
            raise ConnectionError("the server is away")
        self.rows.append(row)


class Blocks(Logger):
    """Writes nothing before it is free."""

    def __init__(self):
        self.begun, self.free, self.rows = threading.Event(), threading.Event(), []
        self.was_waited_for = False

    def write(self, row):
        self.begun.set()
        self.was_waited_for = not self.free.wait(SECONDS)
        self.rows.append(row)


def rows_of(run):
    return read_rows(run.folder / "metrics.jsonl")


@pytest.fixture
def whole(tmp_path):
    return fit(tmp_path / "whole")


def same_training(one, other):
    assert torch.equal(one[1].net.weight, other[1].net.weight)
    values = [
        [
            {k: v for k, v in row.items() if k not in ("time", "perf/samples_per_second")}
            for row in rows_of(r)
        ]
        for r in (one[0], other[0])
    ]
    assert values[0] == values[1]
    assert len(values[0]) == 21


@pytest.mark.fault(41)
def test_one_that_fails_is_reported_once_and_switched_off_and_its_rows_are_counted(tmp_path, whole):
    raises = Raises()
    found = fit(tmp_path, raises)
    same_training(found, whole)
    log = found[2]
    assert (
        log.count("Raises could not write a row, and training continues: ConnectionError: the server") == 1
    )
    assert log.count("Raises failed 10 times in a row: it is switched off") == 1
    assert "Raises did not get 19 rows" in log
    assert (len(raises.rows), raises.calls) == (2, 12)


@pytest.mark.fault(41)
def test_one_that_fails_for_a_while_stays_on(tmp_path, whole):
    raises = Raises(first=3, count=4)
    found = fit(tmp_path, raises)
    same_training(found, whole)
    assert "switched off" not in found[2]
    assert "Raises did not get 4 rows" in found[2]
    assert len(raises.rows) == 17


@pytest.mark.fault(41)
def test_one_that_blocks_holds_nobody_up(tmp_path, whole, monkeypatch):
    monkeypatch.setattr("paceline.trainer.metrics.logger.SECONDS", 0.2)
    blocks = Blocks()
    try:
        found = fit(tmp_path, blocks)
        assert blocks.begun.is_set()
        assert not blocks.was_waited_for
        same_training(found, whole)
        assert "Blocks still writes after 0.2 s and is not waited for" in found[2]
        assert "Blocks did not get 21 rows" in found[2]
    finally:
        blocks.free.set()


@pytest.mark.fault(41)
def test_a_full_queue_drops_rows_and_counts_them(monkeypatch):
    monkeypatch.setattr(logger_queue, "MOST_ROWS", 4)
    blocks, lines = Blocks(), []
    writer = LoggerQueue(blocks, lines.append)
    writer.put({"step": 0})
    assert blocks.begun.wait(SECONDS)  # the thread holds the first one
    for step in range(1, 10):
        writer.put({"step": step})
    blocks.free.set()
    writer.close(SECONDS)
    assert [row["step"] for row in blocks.rows] == [0, 1, 2, 3, 4]
    assert lines == ["warning: Blocks did not get 5 rows"]


def test_a_logger_has_all_rows_when_fit_returns_and_can_be_used_again(tmp_path):
    raises = Raises(first=10**9)
    fit(tmp_path, raises)
    assert len(raises.rows) == 21
    fit(tmp_path, raises)
    assert len(raises.rows) == 42


def test_a_row_is_each_loggers_own(tmp_path):
    class Clears(Logger):
        def write(self, row):
            row.clear()

    run, _, _ = fit(tmp_path, Clears(), Raises(first=10**9))
    assert all("step" in row for row in rows_of(run))


def test_threads_end_with_the_fit(tmp_path):
    fit(tmp_path, Raises(first=10**9))
    assert [thread.name for thread in threading.enumerate() if thread.name == "logger"] == []


def test_metrics_jsonl_on_a_disk_that_is_full_for_a_while_lacks_those_rows_alone(tmp_path, whole):
    """A row that was cut by the disk is taken back, so that the next one is not spoilt."""
    calls = 0

    class Full(JSONLogger):
        def write(self, row):
            nonlocal calls
            calls += 1
            if not 5 <= calls < 8:
                return super().write(row)
            file, limit = self._file, 10

            class Cut:
                def write(self, data):
                    return file.write(data[:limit])

                def __getattr__(self, name):
                    return getattr(file, name)

            self._file = Cut()
            try:
                super().write(row)
            finally:
                self._file = file

    data = DataLoader(TensorDataset(torch.linspace(0, 1, 40).reshape(40, 1)), 2)
    trainer = Trainer(
        run_dir=tmp_path, name="n", accelerator="cpu", progress=False, log_every=1, max_epochs=1,
        loggers=[Full(), *NO_DEFAULTS],
    )  # fmt: skip
    run = trainer.fit(Net(), data)
    steps = [row["step"] for row in rows_of(run)]
    assert steps == [row["step"] for row in rows_of(whole[0])][:4] + list(range(8, 21)) + [20]
    log = (run.folder / "log.txt").read_text()
    assert log.count("Full could not write a row") == 1
    assert "Full did not get 3 rows" in log
