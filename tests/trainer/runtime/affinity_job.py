"""Each rank notes its CPUs in a run with ``numa_affinity`` and around it. python affinity_job.py FOLDER"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback

FOLDER = Path(sys.argv[1])
QUIET = {"accelerator": "cpu", "progress": False, "loggers": False, "checkpoint": False}


def cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def of_threads() -> list[list[int]]:
    """The different affinities of this process's threads."""
    found = set()
    for thread in psutil.Process().threads():
        with suppress(ProcessLookupError):  # it has ended since it was listed
            found.add(tuple(sorted(os.sched_getaffinity(thread.id))))
    return sorted(map(list, found))


class Cpus(Dataset):
    """Samples are the CPUs of whoever reads them: 1 for each, 0 for others."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        row = torch.zeros(1024)
        row[cpus()] = 1
        return row


class Net(TrainModule):
    def __init__(self, fails: bool = False):
        super().__init__()
        self.layer, self.fails, self.seen = nn.Linear(1024, 1), fails, []

    def step(self, batch: torch.Tensor) -> torch.Tensor:
        read_by = sorted({tuple(row.nonzero().flatten().tolist()) for row in batch})
        self.seen.append([cpus(), of_threads(), list(map(list, read_by)), torch.get_num_threads()])
        return self.layer(batch).square().mean()

    def training_step(self, batch):
        if self.fails:
            raise KeyError("mine")
        return self.step(batch)

    def validation_step(self, batch):
        return self.step(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class StartsProcess(Callback):
    """Something that is started in a run and outlives it: a pool of compilers, a tracker."""

    def on_fit_start(self, trainer):
        self.process = psutil.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1)
        self.inside = sorted(self.process.cpu_affinity())


def data(workers: int, method: str | None = None) -> DataLoader:
    return DataLoader(Cpus(), 4, num_workers=workers, multiprocessing_context=method)


def state() -> list:
    return [cpus(), of_threads(), torch.get_num_threads()]


def main() -> dict:
    torch.set_num_threads(len(cpus()))
    torch.ones(500, 500) @ torch.ones(500, 500)  # torch's own threads are there before the run
    found: dict = {"before": state()}
    started = StartsProcess()
    settings = QUIET | {"devices": 2, "max_epochs": 1, "run_dir": FOLDER / "runs"}
    trainer = Trainer(numa_affinity=True, callbacks=[started], **settings)
    module = Net()
    trainer.fit(module, data(0))
    outside = sorted(started.process.cpu_affinity())
    started.process.kill()
    started.process.wait()
    found |= {"fit": module.seen, "after": state(), "folder": str(trainer.folder)}
    found["process"] = [started.inside, outside]

    imports = ["paceline.trainer.trainer", "paceline.callbacks", "psutil", "torch.utils.data"]
    multiprocessing.set_forkserver_preload(imports)  # not in each worker
    for method in ("fork", "forkserver"):
        for name, pinned in ((f"{method} without", False), (method, True), (f"{method} again", False)):
            module = Net()
            # A fork server is an interpreter: that of one rank is enough.
            loader = data(1, method if trainer.rank else "fork")
            Trainer(numa_affinity=pinned, **settings).fit(module, loader)
            found[name] = module.seen

    module, trainer = Net(), Trainer(numa_affinity=True, **settings)
    trainer.validate(module, data(0))
    found |= {"validate": module.seen, "after validate": state()}
    try:
        trainer.fit(Net(fails=True), data(0))
    except KeyError:
        found["after an error"] = state()
    for _ in range(5):
        Trainer(numa_affinity=True, **settings | {"run_dir": None}).fit(Net(), data(0))
    found["after 5"] = state()

    one_alone = Trainer(numa_affinity=trainer.rank == 0, **settings)
    try:
        one_alone.fit(Net(), data(0))
    except PacelineError as error:
        found["differ"] = str(error)
    found["after they differ"] = state()
    return found


if __name__ == "__main__":
    found = main()
    (FOLDER / f"found-{torch.distributed.get_rank()}.json").write_text(json.dumps(found))
