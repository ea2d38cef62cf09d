"""The garbage collector has little to scan while steps run, and all of it again afterwards."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from helpers.collector import count_frozen
from torch import nn

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback

OFF = {"accelerator": "cpu", "progress": False, "loggers": False, "checkpoint": False}


class Net(TrainModule):
    def __init__(self, fails=False):
        super().__init__()
        self.net, self.fails = nn.Linear(2, 1), fails

    def training_step(self, batch):
        if self.fails:
            raise ArithmeticError
        return self.net(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Counts(Callback):
    """How many objects a full collection would look at, step by step."""

    def __init__(self):
        self.objects = []

    def on_step_end(self, trainer, outputs):
        self.objects.append(len(gc.get_objects()))


class Circle:
    def __init__(self):
        self.itself = self


@pytest.fixture(autouse=True)
def nothing_frozen(monkeypatch):
    monkeypatch.setattr(gc, "get_freeze_count", count_frozen)
    gc.unfreeze()
    yield
    gc.freeze()  # for the tests after these


def fit(tmp_path, module=None, *callbacks):
    batches = [torch.randn(4, 2) for _ in range(3)]
    Trainer(**OFF, callbacks=callbacks, run_dir=tmp_path).fit(module or Net(), batches)


def test_a_collection_in_a_step_looks_at_little(tmp_path):
    before, counts = len(gc.get_objects()), Counts()
    fit(tmp_path, None, counts)
    assert before > 50_000
    assert max(counts.objects) < before / 20


def test_what_python_itself_has_frozen_does_not_count(tmp_path, monkeypatch):
    """Python 3.12 starts with 375 frozen objects."""
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)
    before, counts = len(gc.get_objects()), Counts()
    fit(tmp_path, None, counts)
    assert max(counts.objects) < before / 20


@pytest.mark.parametrize("fails", [False, True])
def test_after_the_run_all_is_looked_at_again(tmp_path, fails):
    if fails:
        with pytest.raises(ArithmeticError):
            fit(tmp_path, Net(fails=True))
    else:
        fit(tmp_path)
    assert gc.get_freeze_count() == 0
    assert len(gc.get_objects()) > 50_000


def test_what_somebody_has_frozen_stays_so(tmp_path):
    gc.freeze()
    before = gc.get_freeze_count()
    circle = Circle()
    gone = weakref.ref(circle)
    fit(tmp_path)
    assert 0.9 * before < gc.get_freeze_count() <= before
    del circle
    gc.collect()
    assert gone() is None  # what came after it is collected as before


@pytest.mark.parametrize("frozen", [False, True])
def test_garbage_of_before_a_run_is_not_kept_through_it(tmp_path, frozen):
    if frozen:  # by the program
        gc.freeze()
    fit(tmp_path)  # another run shortly before changes nothing
    circle = Circle()
    gone = weakref.ref(circle)
    gc.collect()  # into the oldest generation
    del circle
    seen = []

    class Looks(Callback):
        def on_step_end(self, trainer, outputs):
            seen.append(gone())

    fit(tmp_path, None, Looks())
    assert seen == [None] * 3


def test_garbage_made_in_steps_is_collected_in_steps(tmp_path):
    alive = []

    class Litters(Callback):
        def on_step_end(self, trainer, outputs):
            circle = Circle()
            alive.append(weakref.ref(circle))
            del circle
            gc.collect()

    fit(tmp_path, None, Litters())
    assert [reference() for reference in alive] == [None] * 3


def test_steps_leave_no_object_behind(tmp_path):
    """Whatever is kept for each step would grow with the run."""
    found = {}
    early, late = range(500, 900, 100), range(900, 1300, 100)

    class Logs(Net):
        def training_step(self, batch):
            self.log("again", batch.mean())
            return super().training_step(batch)

    class Counts(Callback):
        def on_step_end(self, trainer, outputs):
            if trainer.global_step in (*early, *late):
                gc.collect()
                found[trainer.global_step] = len(gc.get_objects())

    batches = [torch.randn(4, 2) for _ in range(100)]
    more = {"checkpoint": False, "max_epochs": 12}  # a save may be under way at one of the looks
    Trainer(accelerator="cpu", **more, callbacks=[Counts()], run_dir=tmp_path).fit(Logs(), batches)
    # The least of several looks: at one of them rows may wait for the thread of a logger.
    assert abs(min(found[step] for step in late) - min(found[step] for step in early)) < 10
