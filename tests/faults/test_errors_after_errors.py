"""What fails while a run ends because of an error: the first error is raised, all others are closed."""

import signal

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint, Logger
from paceline.callbacks.loggers.series import read_rows
from paceline.strategies.single import Single
from paceline.trainer.checkpoint.files.integrity import verify
from paceline.trainer.checkpoint.writer import CheckpointWriter
from paceline.trainer.data.map_feed import MapFeed


class Line(TrainModule):
    def __init__(self, fails):
        super().__init__()
        self.line, self.fails, self.torn = nn.Linear(1, 1), fails, 0

    def training_step(self, batch):
        if self.fails and self.global_step == 3:
            raise ArithmeticError("the first")
        return self.line(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def teardown(self, stage):
        self.torn += 1


class Watching(Callback):
    """What was reported to it."""

    def __init__(self):
        self.errors, self.teardowns = [], 0

    def on_exception(self, trainer, error):
        self.errors.append(error)

    def on_teardown(self, trainer):
        self.teardowns += 1


class Before(Watching):
    pass


class Bad(Logger):
    """Raises in the hooks that are named, and in ``write`` from a step on."""

    def __init__(self, *hooks, at=10**9):
        self.hooks, self.at = hooks, at

    def write(self, row):
        if row["step"] >= self.at:
            raise ZeroDivisionError("in write")

    def on_exception(self, trainer, error):
        self._meet("on_exception")

    def on_teardown(self, trainer):
        self._meet("on_teardown")

    def _meet(self, hook):
        if hook in self.hooks:
            raise LookupError(f"in {hook}")


def fit(module, folder, *callbacks, loggers=()):
    trainer = Trainer(
        run_dir=folder, name="n", accelerator="cpu", progress=False, max_epochs=1, log_every=1,
        loggers=[*loggers, "-curves"], callbacks=[*callbacks, Checkpoint(1)],
    )  # fmt: skip
    trainer.fit(module, DataLoader(torch.ones(16, 1), 2))


def closed(folder):
    """Everything that writes has written all it was given."""
    rows = read_rows(folder / "n/1/metrics.jsonl")
    assert [row["step"] for row in rows][:3] == [1, 2, 3]
    checkpoints = sorted((folder / "n/1/checkpoints").glob("step-*"))
    for checkpoint in checkpoints:
        verify(checkpoint)
    return checkpoints


@pytest.mark.fault(19)
@pytest.mark.parametrize("hooks", [("on_exception",), ("on_teardown",), ("on_exception", "on_teardown")])
@pytest.mark.parametrize("is_logger", [True, False])
def test_the_first_error_stays_and_all_others_are_closed(tmp_path, hooks, is_logger):
    before, after, module = Before(), Watching(), Line(fails=True)
    bad = Bad(*hooks)
    callbacks, loggers = ([before, after], [bad]) if is_logger else ([before, bad, after], [])
    with pytest.raises(ArithmeticError, match="the first") as raised:
        fit(module, tmp_path, *callbacks, loggers=loggers)
    for watching in (before, after):
        assert watching.errors == [raised.value]
        assert watching.teardowns == 1
    assert module.torn == 1
    notes = "\n".join(raised.value.__notes__)
    for hook in hooks:
        assert notes.count(f"then {hook} failed too: LookupError: in {hook}") == 1
    assert [path.name for path in closed(tmp_path)] == [f"step-{n:08d}" for n in (1, 2, 3)]


@pytest.mark.fault(19)
def test_a_logger_that_fails_to_write_changes_nothing_about_the_error_of_a_step(tmp_path):
    watching, module = Watching(), Line(fails=True)
    with pytest.raises(ArithmeticError, match="the first") as raised:
        fit(module, tmp_path, watching, loggers=[Bad("on_exception", "on_teardown", at=2)])
    assert watching.errors == [raised.value]
    assert watching.teardowns == module.torn == 1
    assert closed(tmp_path)


@pytest.mark.fault(19)
def test_a_process_that_failed_so_can_train_again(tmp_path):
    module = Line(fails=True)
    with pytest.raises(ArithmeticError):
        fit(module, tmp_path, Bad("on_exception", "on_teardown"))
    module.fails = False
    fit(module, tmp_path, Watching())
    assert (tmp_path / "n/2/checkpoints/step-00000008").is_dir()


@pytest.mark.parametrize("what", ["Single.close", "MapFeed.close", "CheckpointWriter.close"])
def test_where_one_part_cannot_be_closed_the_others_are(tmp_path, monkeypatch, what):
    def fails(*arguments):
        raise OSError("cannot be closed")

    usual = signal.getsignal(signal.SIGTERM)
    trainer = Trainer(
        accelerator="cpu", max_steps=2, progress=False, loggers=False, checkpoint=False, run_dir=tmp_path
    )
    with monkeypatch.context() as patched:
        owner, method = what.split(".")
        patched.setattr({"Single": Single, "MapFeed": MapFeed}.get(owner, CheckpointWriter), method, fails)
        with pytest.raises(OSError, match="cannot be closed"):
            trainer.fit(Line(False), DataLoader(torch.ones(8, 1)))
    assert signal.getsignal(signal.SIGTERM) is usual
    trainer.fit(Line(False), DataLoader(torch.ones(8, 1)))
