"""The garbage collector has little to scan while steps run, and all of it again afterwards."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager

import pytest
import torch
from helpers.collector import count_frozen
from torch import nn

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback
from paceline.trainer.runtime import garbage_collection

OFF = {"accelerator": "cpu", "progress": False, "loggers": False, "checkpoint": False}
FROZEN_BY_PYTHON = 375  # objects, when Python 3.12 starts


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


class Circle:
    def __init__(self):
        self.itself = self


class Watch(Callback):
    """In each step: how many objects a full collection would look at, and which garbage is left after one.

    Args:
        before: Refers to garbage of before the run.
    """

    def __init__(self, before):
        self.before, self.objects, self.left = before, [], []

    def on_step_end(self, trainer, outputs):
        self.objects.append(len(gc.get_objects()))
        self.left.append(self.before())
        circle = Circle()
        made = weakref.ref(circle)
        del circle
        gc.collect()
        self.left.append(made())


@contextmanager
def nothing_frozen():
    """All that the process of the tests keeps counts again: a collection takes a second then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "get_freeze_count", count_frozen)
        patch.setattr(garbage_collection, "_SECONDS", 0)
        gc.unfreeze()
        try:
            yield patch
        finally:
            gc.freeze()  # for the tests after these


def fit(module=None, *callbacks):
    batches = [torch.randn(4, 2) for _ in range(3)]
    Trainer(**OFF, callbacks=callbacks, run_dir=None).fit(module or Net(), batches)


def watched():
    """What a run saw, of which garbage was left in the oldest generation."""
    circle = Circle()
    gone = weakref.ref(circle)
    gc.collect()
    del circle
    watch = Watch(gone)
    fit(None, watch)
    assert len(watch.objects) == 3
    assert watch.left == [None] * 6
    return watch


@pytest.mark.launch  # for its length
def test_a_collection_in_a_step_looks_at_little_and_after_the_run_at_all():
    with nothing_frozen() as patch:
        before = len(gc.get_objects())
        fit()  # another run shortly before changes nothing
        watch = watched()
        assert before > 50_000
        assert max(watch.objects) < before / 20
        for fails in (False, True):
            if fails:
                with pytest.raises(ArithmeticError):
                    fit(Net(fails=True))
            assert gc.get_freeze_count() == 0
            assert len(gc.get_objects()) > before / 2
        patch.setattr(gc, "get_freeze_count", lambda: FROZEN_BY_PYTHON)
        assert max(watched().objects) < before / 20


def test_fits_in_quick_succession_scan_everything_once_unless_much_memory_is_in_use(monkeypatch):
    collect, scans = gc.collect, []
    monkeypatch.setattr(gc, "collect", lambda: scans.append(collect()))
    for memory, expected in (2**29, 1), (2**31, 4):
        scans.clear()
        monkeypatch.setattr(garbage_collection, "_memory_in_use", lambda memory=memory: memory)
        monkeypatch.setattr(garbage_collection, "_collected", float("-inf"))
        for _ in range(4):
            fit()
        assert len(scans) == expected


def test_memory_in_use_is_that_of_tensors():
    before = garbage_collection._memory_in_use()
    tensor = torch.ones(2**26)
    assert 2**27 < garbage_collection._memory_in_use() - before < 2**29
    del tensor


def test_what_somebody_has_frozen_stays_so():
    with nothing_frozen():
        gc.freeze()
        before = gc.get_freeze_count()
        circle = Circle()
        gone = weakref.ref(circle)
        fit()
        watched()
        assert 0.9 * before < gc.get_freeze_count() <= before
        del circle
        gc.collect()
        assert gone() is None  # what came after it is collected as before


def test_steps_leave_no_object_behind(tmp_path):
    """Whatever is kept for each step would grow with the run."""
    found = {}
    early, late = range(300, 500, 50), range(500, 700, 50)

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
    more = {"checkpoint": False, "max_epochs": 7}  # a save may be under way at one of the looks
    Trainer(accelerator="cpu", **more, callbacks=[Counts()], run_dir=tmp_path).fit(Logs(), batches)
    # The least of several looks: at one of them rows may wait for the thread of a logger.
    assert abs(min(found[step] for step in late) - min(found[step] for step in early)) < 10
