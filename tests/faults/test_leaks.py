"""Twenty fits in one process, some cut by a signal or an error: nothing of them stays behind."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Checkpoint, EarlyStopping, JSONLogger, TensorBoard
from paceline.faultpoints import Fault, arm

FITS = 20
SETTLED = 6  # from here on what is made once and kept is there
PLACES = ("step.backward", "validate.batch", "save.write", "start.ready", "epoch.end", "data.read")
HOOKS = [name for name in vars(nn.Module()) if "hooks" in name]


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.fails = False

    def training_step(self, batch):
        if self.fails and self.global_step == 3:
            raise ArithmeticError("in a step")
        return self.loss(batch)

    def validation_step(self, batch):
        self.log("loss", self.loss(batch))

    def loss(self, batch):
        return self.last(self.norm(self.first(batch[0]))).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1)


def one_fit(number, module, folder):
    """How it ended: every third is cut by a signal, every fifth by an error."""
    trainer = Trainer(
        run_dir=folder, name="n", accelerator="cpu", progress=number % 4 == 1, max_epochs=2,
        loggers=[TensorBoard(), JSONLogger()], validate_every="2st", clip_grad_norm=1.0,
        callbacks=[Checkpoint(2, monitor="val/loss"), EarlyStopping("val/loss", patience=50)],
    )  # fmt: skip
    data = TensorDataset(torch.randn(16, 2))
    workers = 2 if number % 3 == 1 else 0
    loaders = [
        DataLoader(data, 4, num_workers=workers, persistent_workers=bool(workers)),
        DataLoader(data, 8, num_workers=workers),
    ]
    cut = number % 3 == 0
    module.fails = not cut and number % 5 == 0
    if cut:
        arm(Fault(PLACES[number // 3 % len(PLACES)], "SIGTERM"))
    try:
        trainer.fit(module, *loaders, resume="auto" if number % 7 == 6 else None)
    except (SystemExit, ArithmeticError) as error:
        return type(error)
    finally:
        arm()
    return None


def held(module, temporary):
    """All that a run could leave behind."""
    gc.collect()
    tasks = Path("/proc/self/task")
    descriptors = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "tasks": len(list(tasks.iterdir())),
        "descriptors": len(descriptors),
        "children": [
            child for task in tasks.iterdir() for child in (task / "children").read_text().split()
        ],
        "handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "wakeup": wakeup,
        "temporary": sorted(os.listdir(temporary)),
        "hooks": {name: [len(getattr(part, name)) for part in module.modules()] for name in HOOKS},
        "on tensors": [(p._backward_hooks, p._post_accumulate_grad_hooks) for p in module.parameters()],
        "attributes": sorted(vars(module)),
        "trainers": sum(type(thing) is Trainer for thing in gc.get_objects()),
    }


@pytest.fixture
def temporary(monkeypatch):
    """TMPDIR; its path is short, since loader workers have sockets there."""
    found = Path(tempfile.mkdtemp(prefix="leaks-"))
    monkeypatch.setenv("TMPDIR", str(found))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield found
    shutil.rmtree(found)


@pytest.mark.fault(31)
def test_twenty_fits_leave_nothing_behind(tmp_path, temporary):
    module, ends = Net(), []
    before = held(module, temporary)
    for number in range(FITS):
        ends.append(one_fit(number, module, tmp_path))
        if number == SETTLED:
            settled = held(module, temporary)
    after = held(module, temporary)
    assert ends.count(SystemExit) == 7
    assert ends.count(ArithmeticError) == 2
    assert ends.count(None) == 11
    for name, value in after.items():
        assert value == settled[name], name
    # torch's DataLoader installs a handler of its own for the end of its workers
    for name in ("threads", "children", "wakeup", "hooks", "on tensors", "trainers"):
        assert after[name] == before[name], name
