"""Trains a small model, and lets happen to its ranks what the options say.

python failing_job.py OPTIONS   (JSON)

Runs and ``notes``, a line of JSON each, go to the folder it is started in.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

OPTIONS: dict[str, Any] = {}
NEVER = 10**9


def note(what: str, **values: Any) -> None:
    """One write of one line: processes do not come into each other's."""
    about = {"what": what, "rank": rank(), "attempt": attempt(), "pid": os.getpid(), "time": time.time()}
    with open("notes", "ab", buffering=0) as notes:
        notes.write((json.dumps(about | values) + "\n").encode())


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def attempt() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def launcher() -> int:
    """Its process; a rank that the tests fork has another parent."""
    return int(os.environ.get("TEST_LAUNCHER") or os.environ["PACELINE_LAUNCHER"])


# -- what happens --------------------------------------------------------------------------------


def fail() -> None:
    raise ArithmeticError("of the user")


def make_a_mistake() -> None:
    raise PacelineError("a mistake of the user", fix="make none")


def hold_the_interpreter() -> None:
    """Without end, outside of Python, with its lock: no thread of this process runs Python again."""
    held, system = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
    system.pthread_mutex_lock(held)
    system.pthread_mutex_lock(held)


HAPPENS: dict[str, Callable[[], Any]] = {
    "raise": fail,
    "mistake": make_a_mistake,
    "sleep": lambda: time.sleep(1000),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "hold": hold_the_interpreter,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
    "exit with 0": lambda: os._exit(0),
    "sys.exit": lambda: sys.exit(0),
    "segfault": lambda: ctypes.string_at(0),
    "nap": lambda: ctypes.PyDLL(None).usleep(900_000),  # all threads of the process do
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "kill the launcher": lambda: os.kill(launcher(), signal.SIGKILL),
    "stop the launcher": lambda: os.kill(launcher(), signal.SIGTERM),
}


def meet(place: str, at: int | None = None, fit: str | None = None) -> None:
    """A place where something may happen.

    Args:
        at: Which step, or how many samples this process has read. "any": a step that is drawn.
        fit: The name of the run.
    """
    for fault in OPTIONS.get("faults", []):
        when = fault.get("at", at)
        if when == "any":
            when = random.Random(os.environ.get("TORCHELASTIC_RUN_ID")).randrange(2, 7)
        wanted = (fault["place"], fault.get("rank", 1), when, fault.get("attempt", attempt()))
        if (*wanted, fault.get("fit", fit)) == (place, rank(), at, attempt(), fit):
            note("meets", at=at)
            HAPPENS[fault["what"]]()


import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from paceline import PacelineError, Trainer, TrainModule  # noqa: E402
from paceline.callbacks import Callback, Checkpoint  # noqa: E402
from paceline.common import faultpoints  # noqa: E402


class Points(Dataset):
    """Says in which process a sample was read first."""

    def __init__(self, count: int, place: str) -> None:
        self.values = torch.randn(count, 3, generator=torch.Generator().manual_seed(1))
        self.place, self.read_by, self.reads = place, 0, 0

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.read_by != os.getpid():
            self.read_by, self.reads = os.getpid(), 0
            note("reads", place=self.place)
        self.reads += 1
        meet(self.place, self.reads)
        return self.values[index]


class Net(TrainModule):
    """Draws in dropout.

    Args:
        pauses: Seconds that a "first" step, a "step", and a batch of "validation" take.
    """

    def __init__(self, pauses: dict[str, float]) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 1)
        self.pauses, self.begun = pauses, False

    def setup(self, stage):
        meet("setup")

    def training_step(self, batch):
        time.sleep(self.pauses.get("step" if self.begun else "first", 0))
        self.begun = True
        meet("training_step", self.global_step, self.trainer.name)
        loss = self.last(self.drop(self.first(batch))).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch):
        time.sleep(self.pauses.get("validation", 0))
        meet("validation_step", self.global_step, self.trainer.name)
        self.log("loss", self.last(self.first(batch)).square().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)


class Notes(Callback):
    """Which steps were trained, and what was reported of an error."""

    def on_fit_start(self, trainer):
        names = [thread.name for thread in threading.enumerate()]
        note(
            "begins", fit=trainer.name, step=trainer.global_step, folder=str(trainer.folder), threads=names
        )

    def on_step_end(self, trainer):
        note("step", fit=trainer.name, step=trainer.global_step)
        meet("hook", trainer.global_step, trainer.name)

    def on_exception(self, trainer, error):
        note("exception", said=f"{type(error).__name__}: {error}".splitlines()[0])


def train(
    name: str = "n", resume: str | None = None, checkpoint: int = 2, validates: bool = True, **more: Any
) -> None:
    """One run.

    Args:
        checkpoint: After how many steps.
        more: Arguments of the Trainer.
    """
    usual = {"accelerator": "cpu", "devices": 2, "max_epochs": 2, "seed": 5, "progress": False}
    usual |= {
        "sanity_val_batches": 0,
        "log_every": 1,
        "loggers": ["-tensorboard", "-curves"],
        "run_dir": "runs",
    }
    torch.manual_seed(3)
    module = Net(OPTIONS.get("pauses", {}))
    trainer = Trainer(**(usual | more), name=name, callbacks=[Notes(), Checkpoint(checkpoint, keep=None)])
    workers = OPTIONS.get("workers", 0)
    data = DataLoader(Points(32, "data"), 4, shuffle=True, num_workers=workers)
    val = DataLoader(Points(OPTIONS.get("val_samples", 8), "val_data"), 2) if validates else None
    trainer.fit(module, data, val, resume=resume)
    note("end", fit=name, step=trainer.global_step, folder=str(trainer.folder))


def main() -> None:
    """The script as a user would write it."""
    for arguments in OPTIONS.get("fits", [{}]):
        train(**(OPTIONS.get("trainer", {}) | arguments))
    meet("after")


if __name__ == "__main__":
    torch.set_num_threads(1)
    OPTIONS.update(json.loads(sys.argv[1]))
    if "arm" in OPTIONS:
        faultpoints.arm(faultpoints.Fault(*OPTIONS["arm"]))
    if "RANK" in os.environ:  # not in the launching process
        atexit.register(meet, "exit")  # called after paceline's own functions for the exit
    main()
    atexit.register(meet, "before exit")
