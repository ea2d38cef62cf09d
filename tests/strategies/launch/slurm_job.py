"""A script that trains on the ranks of a job of SLURM, and notes what happens.

python slurm_job.py SETTINGS   (JSON: arguments of ``train``)
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

STEPS = 40


def starts_before() -> int:
    """How often the job was started before this."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def note(what: str, **values: Any) -> None:
    """A line in ``notes``, which all starts of the job share."""
    line = json.dumps({"what": what, "start": os.environ.get("SLURM_RESTART_COUNT", "0")} | values)
    with open("notes", "a") as file:
        file.write(line + "\n")


if __name__ == "__main__" and json.loads(sys.argv[1]).get("imports") and not starts_before():
    note("imports")
    time.sleep(600)

import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from paceline import PacelineError, Trainer, TrainModule  # noqa: E402
from paceline.callbacks import Callback  # noqa: E402
from paceline.callbacks.loggers.tracker import Tracker  # noqa: E402


class Listing(Tracker):
    """Notes which run of the tracker it is to continue."""

    package = "json"

    def open(self, run):
        note("tracker", id=run.run_id)
        return run.run_id or "id-1"

    def send(self, row):
        pass

    def close(self, ended):
        pass


class Notes(Callback):
    """Notes steps.

    Args:
        waits: A save, at the job's first start, ends when there is a file ``go-on``.
    """

    def __init__(self, waits: bool) -> None:
        self.waits = waits

    def on_fit_start(self, trainer):
        note("begins", step=trainer.global_step, rank=trainer.rank)

    def on_step_end(self, trainer):
        if trainer.is_global_zero and trainer.global_step in (5, STEPS):
            note("step", step=trainer.global_step)

    def on_save_checkpoint(self, trainer, state):
        if self.waits and not starts_before():
            note("saves", rank=trainer.rank)
            while not Path("go-on").exists():
                time.sleep(0.05)


class Net(TrainModule):
    """A line, by steps that take a moment at so many starts of a job."""

    def __init__(self, slow: int) -> None:
        super().__init__()
        self.slow = slow
        torch.manual_seed(0)
        self.line = torch.nn.Linear(4, 1)

    def training_step(self, batch):
        is_slow = starts_before() < self.slow and "SLURM_JOB_ID" in os.environ
        time.sleep(0.2 if is_slow else 0)  # always: ranks agree after so many steps as took half a second
        return (self.line(batch[0]) + torch.rand(())).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.01)


def train(
    waits: bool = False,
    imports: bool = False,
    slow: int = 1,
    fails: str | None = None,
    strategy: str = "ddp",
    **settings: Any,
) -> list[float]:
    """Train, and return the weights.

    Args:
        waits: A save waits for a file ``go-on`` at the job's first start.
        fails: The number of a machine on which the script fails; on others it waits.
        imports: Wait for a signal before anything else is imported, at the job's first start.
        slow: At so many starts of the job the steps take a moment.
    """
    if fails is not None and os.environ["SLURM_NODEID"] == fails:
        raise PacelineError("on purpose")
    if fails is not None:
        time.sleep(600)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.rand(4 * STEPS, 4, generator=generator))
    module = Net(slow)
    trainer = Trainer(
        strategy=strategy, accelerator="cpu", name="n", progress=False, max_epochs=1, global_batch_size=4,
        loggers=[Listing(), "-tensorboard", "-curves"], callbacks=[Notes(waits)], **settings,
    )  # fmt: skip
    run = trainer.fit(module, DataLoader(data, 2, shuffle=True))
    weights = torch.cat([p.detach().flatten() for p in module.parameters()]).tolist()
    if trainer.is_global_zero:
        note("done", weights=weights, folder=str(run.folder), step=trainer.global_step)
    return weights


class Training:
    """What a test has submitit run, which asks it how to continue."""

    def __call__(self, **settings: Any) -> list[float]:
        return train(**settings)

    def checkpoint(self, **settings: Any) -> Any:
        """What submitit runs at the next start."""
        from submitit.helpers import DelayedSubmission

        Path("asked").touch()
        return DelayedSubmission(self, **settings)


if __name__ == "__main__":
    torch.set_num_threads(1)
    Path("notes").touch()
    train(**json.loads(sys.argv[1]))
