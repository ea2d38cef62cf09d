"""Counted, not timed: Python calls of a step beyond those of the hand-written loop."""

import gc
import sys
from collections import Counter

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback

FIRST, LAST = 260, 280  # after the steps at which Checks looks
MOST = 30  # the peer that calls most: 820
MOST_TO_RECORD = 15  # what `paceline diff` compares
MOST_TO_READ = 20  # a batch of a TensorDataset's rows, beyond a batch that is ready


class Calls:
    """Counts calls of Python functions while it is open."""

    def __init__(self):
        self.found = Counter()

    def __enter__(self):
        def count(frame, event, argument):
            if event == "call":
                self.found[frame.f_code.co_qualname] += 1

        gc.disable()  # other packages have callbacks of theirs in it
        sys.setprofile(count)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)
        gc.enable()

    def a_step(self):
        return sum(self.found.values()) / (LAST - FIRST)


def make_net():
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))


class Net(TrainModule):
    def __init__(self, logged=0):
        super().__init__()
        self.net, self.logged = make_net(), logged

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        for number in range(self.logged):
            self.log(f"value {number}", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Counting(Callback):
    """Counts from one step's start to another's."""

    def __init__(self, first):
        self.first, self.calls = first, Calls()

    def on_step_start(self, trainer, batches):
        if trainer.global_step == self.first:
            self.calls.__enter__()
        elif trainer.global_step == self.first + LAST - FIRST:
            self.calls.__exit__()


def batches():
    return [(torch.randn(8, 16), torch.randint(2, (8,))) for _ in range(LAST + 5)]


def ours(data, logged=0, first=FIRST, **settings):
    counting = Counting(first)
    off = {
        "progress": False,
        "loggers": False,
        "checkpoint": False,
        "record": False,
        "log_every": "100000st",
    }
    trainer = Trainer(accelerator="cpu", max_epochs=1, callbacks=[counting], **off | settings)
    trainer.fit(Net(logged), data)
    assert trainer.global_step > first + LAST - FIRST
    return counting.calls


def written_by_hand(data):
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    calls = Calls()
    for number, (x, y) in enumerate(data):
        if number == FIRST:
            calls.__enter__()
        elif number == LAST:
            calls.__exit__()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return calls.a_step()


def test_with_everything_off(tmp_path):
    calls = ours(batches(), run_dir=tmp_path)
    assert calls.a_step() - written_by_hand(batches()) <= MOST, calls.found.most_common()


def test_the_record_of_a_step(tmp_path):
    calls = ours(batches(), record=True, run_dir=tmp_path)
    off = ours(batches(), run_dir=tmp_path)
    assert calls.a_step() - off.a_step() <= MOST_TO_RECORD, (calls.found - off.found).most_common()


def test_over_a_loader_of_rows(tmp_path):
    """Both loops read the same loader; beyond ready batches, reading rows is a few calls."""
    rows = TensorDataset(torch.randn(8 * LAST + 40, 16), torch.randint(2, (8 * LAST + 40,)))
    calls = ours(DataLoader(rows, 8, shuffle=True), run_dir=tmp_path)
    by_hand = written_by_hand(DataLoader(rows, 8, shuffle=True))
    assert calls.a_step() - by_hand <= MOST, calls.found.most_common()
    ready = ours(batches(), run_dir=tmp_path)
    assert calls.a_step() - ready.a_step() <= MOST_TO_READ, calls.found.most_common()


def test_a_logged_value_is_three_calls(tmp_path):
    none, ten = (ours(batches(), logged, run_dir=tmp_path).found.total() for logged in (0, 10))
    assert ten - none <= 30 * (LAST - FIRST)


def test_the_count_does_not_grow_with_steps_done(tmp_path):
    few = ours(batches(), logged=3, run_dir=tmp_path).a_step()
    assert ours(batches() * 30, logged=3, first=1000, run_dir=tmp_path).a_step() == few
