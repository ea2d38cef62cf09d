"""Progress: plain lines where nobody watches, one line of at most 80 columns on a terminal."""

import io
import os
import re
from contextlib import redirect_stdout

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Checks, ModelSummary, Progress


class Module(TrainModule):
    def __init__(self, shown=()):
        super().__init__()
        self.net = nn.Linear(2, 1)
        self.shown = shown

    def training_step(self, batch):
        for name in self.shown:
            self.log(name, 0.123456, prog_bar=True)
        self.log("unseen", 1.0)
        return F.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch):
        self.log("accuracy", 0.5, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(12):
            yield torch.ones(2), torch.ones(1)


def loader(samples=12):
    x = torch.linspace(-1, 1, 2 * samples).reshape(samples, 2)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)


def fit(watcher=None, train=None, val=None, module=None, **settings):
    callbacks = [watcher] if watcher else []
    settings = {"loggers": False, "checkpoint": False, "max_epochs": 2, "log_every": 1} | settings
    trainer = Trainer(callbacks=callbacks, **settings)
    trainer.fit(module or Module(), loader() if train is None else train, val)
    return trainer


# -- off a terminal ------------------------------------------------------------------------------


def test_plain_lines_off_a_terminal(capsys):
    fit(Progress(every=0.0), module=Module(["speed"]))
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if re.match(r"epoch \d/2, step \d/6, ", line)]
    assert len(lines) == 7  # one for each step and one for the end
    assert "\r" not in out
    assert "\x1b" not in out
    assert re.search(r"loss [\d.]+", lines[3])
    assert "speed 0.1235" in lines[3]
    assert "unseen" not in out
    assert re.search(r"samples/s, [\d.]+GB, ETA \d+:\d\d$", lines[3])


def test_the_last_line_says_why_it_ended(capsys):
    fit(Progress(), max_steps=4)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("epoch 2/2, step 4/4, ")
    assert last.endswith("; ended: max_steps=4 reached")


def test_between_two_lines_is_the_time_asked_for(capsys):
    fit(Progress(every=1000.0))
    lines = [line for line in capsys.readouterr().out.splitlines() if "samples/s" in line]
    assert len(lines) == 1  # the last


def test_a_validation_is_a_line_of_its_own_and_the_sanity_pass_none(capsys):
    fit(Progress(every=1000.0), val=loader())
    lines = [line for line in capsys.readouterr().out.splitlines()[:-1] if "val/accuracy" in line]
    assert lines == ["epoch 1, step 3: val/accuracy 0.5", "epoch 2, step 6: val/accuracy 0.5"]


def test_data_without_length_has_neither_total_nor_eta(capsys):
    fit(Progress(every=0.0), train=DataLoader(Stream(), batch_size=4))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch 1/2, step 2,")]
    assert len(lines) == 1
    assert "ETA" not in lines[0]


def test_progress_false_says_the_first_lines_only(capsys):
    fit(progress=False, val=loader())
    out = capsys.readouterr().out
    assert "samples/s" not in out
    assert "val/accuracy" not in out
    assert out.startswith("paceline ")


# -- on a terminal -------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """Keeps what is written; its size is that of a real pseudo-terminal."""

    def __init__(self, descriptor):
        super().__init__()
        self._descriptor = descriptor

    def isatty(self):
        return True

    def fileno(self):
        return self._descriptor


@pytest.fixture
def terminal(monkeypatch):
    pty = pytest.importorskip("pty")
    termios = pytest.importorskip("termios")
    monkeypatch.setattr("paceline.callbacks.progress._BAR_EVERY", 0.0)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    pair = pty.openpty()
    termios.tcsetwinsize(pair[1], (24, 80))
    yield Terminal(pair[1])
    for descriptor in pair:
        os.close(descriptor)


def fit_on(terminal, *args, **settings):
    with redirect_stdout(terminal):
        return fit(*args, **settings)


def drawn(terminal):
    """Each state of the bar: what follows a return to the line's beginning."""
    return [bar for line in terminal.getvalue().split("\n") for bar in line.split("\r")[1:]]


def test_a_bar_of_one_line_on_a_terminal(terminal):
    trainer = fit_on(terminal, module=Module(["speed"]))
    bars = drawn(terminal)
    assert len(bars) >= trainer.global_step
    assert max(len(bar.rstrip()) for bar in bars) <= 80
    assert any("1/2" in bar and "2/6" in bar for bar in bars)
    whole = next(bar for bar in reversed(bars) if "6/6" in bar)
    assert "2/2" in whole
    assert "loss" in whole
    assert "speed 0.1235" in whole
    # The bar stays on one line: with the last line said, it ends its own.
    assert terminal.getvalue().count("6/6") == len([bar for bar in bars if "6/6" in bar]) + 1


def test_a_bar_with_many_values_is_cut_at_the_width(terminal):
    names = [f"a_rather_long_name_{n}" for n in range(8)]
    fit_on(terminal, Checks(skip="split-overlap"), module=Module(names), val=loader())
    bars = drawn(terminal)
    assert any("6/6" in bar for bar in bars)
    assert max(len(bar.rstrip()) for bar in bars) <= 80


def test_a_bar_without_a_total_is_cut_at_the_width_too(terminal):
    names = [f"a_rather_long_name_{n}" for n in range(8)]
    fit_on(terminal, module=Module(names), train=DataLoader(Stream(), batch_size=4))
    bars = drawn(terminal)
    assert any("loss" in bar and "1/2" in bar for bar in bars)
    assert max(len(bar.rstrip()) for bar in bars) <= 80


def test_lines_said_in_the_midst_go_above_the_bar(terminal):
    class Talks(Module):
        def training_step(self, batch, batch_idx):
            if batch_idx == 1:
                self.print("seen", "here")
            return super().training_step(batch)

    fit_on(terminal, module=Talks(), max_epochs=1)
    lines = terminal.getvalue().split("\n")
    assert any(re.split("\r", line)[-1].strip() == "seen here" for line in lines)


def test_a_bar_is_closed_after_an_error(terminal):
    class Breaks(Module):
        def training_step(self, batch, batch_idx):
            if batch_idx == 2:
                raise RuntimeError("broken")
            return super().training_step(batch)

    progress = Progress()
    with pytest.raises(RuntimeError, match="broken"):
        fit_on(terminal, progress, module=Breaks())
    assert progress._bar is None
    assert terminal.getvalue().endswith("\n")


# -- which ---------------------------------------------------------------------------------------


def test_ones_own_replaces_the_default():
    own = Progress(every=3.0)
    found = Trainer(callbacks=own).callbacks
    assert [c for c in found if isinstance(c, Progress)] == [own]
    kinds = {type(callback) for callback in Trainer(progress=False).callbacks}
    assert not kinds & {Progress, ModelSummary}
