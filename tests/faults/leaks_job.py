"""Many fits in one process, some cut by a signal or an error, and all that they could leave behind."""

from __future__ import annotations

import faulthandler
import gc
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Checkpoint, EarlyStopping
from paceline.common.faultpoints import Fault, arm

SETTLED = 6  # from here on what is made once and kept is there
SECONDS = 180
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


def one_fit(number, module, folder, rank=0, **settings):
    """How it ended: every third is cut by a signal, every fifth by an error where nobody waits for it.

    Args:
        rank: Which rank of several this is; the signal is sent to one of them.
    """
    trainer = Trainer(
        run_dir=folder, name="n", accelerator="cpu", progress=number % 4 == 1, max_epochs=2,
        loggers=["-curves"], validate_every="2st", clip_grad_norm=1.0,
        callbacks=[Checkpoint(2, monitor="val/loss"), EarlyStopping("val/loss", patience=50)],
        **settings,
    )  # fmt: skip
    fixed = torch.Generator().manual_seed(0)  # ranks and resumed runs have the same data
    data = TensorDataset(torch.randn(16 * trainer.world_size, 2, generator=fixed))
    workers = 2 if number % 3 == 1 else 0
    loaders = [
        DataLoader(data, 4, num_workers=workers, persistent_workers=bool(workers)),
        DataLoader(data, 8, num_workers=workers),
    ]
    cut = number % 3 == 0
    module.fails = not cut and number % 5 == 0 and trainer.world_size == 1
    if cut and (number // 3) % trainer.world_size == rank:
        arm(Fault(PLACES[number // 3 % len(PLACES)], "SIGTERM"))
    try:
        trainer.fit(module, *loaders, resume="auto" if number % 7 == 6 else None)
    except (SystemExit, ArithmeticError) as error:
        return type(error).__name__
    finally:
        arm()
    return None


def held(module, temporary, folder, rank, earlier=None):
    """All that a run could leave behind; the other rank may not be done yet.

    Args:
        earlier: What was held then: threads that go beyond that have a minute to end.
    """
    gc.collect()
    tasks, before = Path("/proc/self/task"), earlier or {}
    others = (".lock", f".stacks-rank-{1 - rank}.txt")
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    return {
        "threads": threads(earlier),
        "tasks": number_in(tasks, before.get("tasks")),
        "descriptors": number_in(Path("/proc/self/fd"), before.get("descriptors")),
        "children": [
            child for task in tasks.iterdir() for child in (task / "children").read_text().split()
        ],
        "handlers": {int(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
        "wakeup": wakeup,
        "temporary": sorted(os.listdir(temporary)),
        "hidden files": sorted(str(path) for path in folder.rglob(".*") if path.name not in others),
        "hooks": {name: [len(getattr(part, name)) for part in module.modules()] for name in HOOKS},
        "on tensors": [
            str((p._backward_hooks, p._post_accumulate_grad_hooks)) for p in module.parameters()
        ],
        "attributes": sorted(vars(module)),
        "trainers": sum(type(thing) is Trainer for thing in gc.get_objects()),
    }


def threads(earlier):
    """The names of threads; a queue's own may be about to end."""

    def look():
        return sorted(thread.name for thread in threading.enumerate())

    return least(look, None if earlier is None else earlier["threads"], len)


def number_in(folder, before):
    """Threads, or descriptors: a thread that has been joined takes a moment to go, and closes some then."""
    return least(lambda: len(list(folder.iterdir())), before, int)


def least(look, earlier, size):
    """The least that is found: as soon as it is no more than earlier, or in half a second, or a minute."""
    begun, found = time.monotonic(), look()
    while time.monotonic() - begun < (0.5 if earlier is None else 60):
        if earlier is not None and size(found) <= size(earlier):
            break
        time.sleep(0.05)
        found = min(found, look(), key=size)
    return found


def fits(count, folder, rank=0, **settings) -> dict[str, Any]:
    """How so many fits ended, and what was held before, after the first few and after the last."""
    temporary = tempfile.mkdtemp(prefix="leaks-")  # short: loader workers have sockets there
    usual, tempfile.tempdir = tempfile.tempdir, temporary
    os.environ["TMPDIR"] = temporary
    try:
        module, ends = Net(), []
        found = {"before": held(module, temporary, folder, rank)}
        for number in range(count):
            ends.append(one_fit(number, module, folder, rank, **settings))
            if number == SETTLED:
                found["settled"] = held(module, temporary, folder, rank)
        after = held(module, temporary, folder, rank, found["settled"])
        return found | {"after": after, "ends": ends}
    finally:
        tempfile.tempdir = usual
        del os.environ["TMPDIR"]
        shutil.rmtree(temporary)


def on_rank(folder: Path, count: int, strategy: str) -> dict[str, Any]:
    """The same on one of two ranks."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    often = {"save": "6s"}  # the watchdog looks up every 0.3 s, so in most of the fits
    return fits(count, folder, int(os.environ["RANK"]), devices=2, strategy=strategy, timeouts=often)
