"""Trains a small model as its options say; each process notes what it came to see.

python launch_job.py FOLDER OPTIONS [ARGUMENT ...]   (OPTIONS: JSON)

FOLDER/notes gets one line of JSON a note. What the options mean stands where they are read.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

FOLDER, OPTIONS = Path(sys.argv[1]), json.loads(sys.argv[2])
WITHOUT_END = 10**9


def note(what: str, **values) -> None:
    """One write of one line: processes do not come into each other's."""
    line = json.dumps({"what": what, "pid": os.getpid(), **values}) + "\n"
    notes = os.open(FOLDER / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(notes, line.encode())
    os.close(notes)


rank = os.environ.get("RANK")
settings = {"omp": os.environ.get("OMP_NUM_THREADS"), "port": os.environ.get("MASTER_PORT")}
note("top", rank=rank, argv=sys.argv, folder=os.getcwd(), **settings)
print(f"printed above by {rank}", flush=True)
if OPTIONS.get("waits_before") and rank is not None:  # a rank that has not come to paceline yet
    time.sleep(600)
if "ends_before" in OPTIONS and rank is not None:
    sys.exit(OPTIONS["ends_before"])
if OPTIONS.get("fails") == "before" and rank == "1":
    raise ArithmeticError("before there is a trainer")

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from paceline import PacelineError, Trainer, TrainModule  # noqa: E402
from paceline.callbacks import Callback, Checkpoint  # noqa: E402
from paceline.strategies import Distributed  # noqa: E402


class Points(Dataset):
    """Says when its first sample is read."""

    def __init__(self, samples: int = 24):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(samples, 3, generator=generator)
        self.read = False

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int):
        if not self.read:
            self.read = True
            note("read")
        return self.x[index], self.x[index].sum()


class Line(TrainModule):
    """Its weights come from a generator that nobody seeds."""

    def __init__(self, width: int = 4):
        super().__init__()
        self.hidden, self.out = nn.Linear(3, width), nn.Linear(width, 1)
        draw = np.random.default_rng()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.from_numpy(draw.standard_normal(parameter.shape)))

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x))).squeeze(1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        misbehave(self.trainer)
        return (self(x) - y).square().mean()

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("loss", (self(x) - y).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02)


def misbehave(trainer) -> None:
    """fails: how a rank ends in step 3. stuck: the rank that never comes out of step 3."""
    if OPTIONS.get("steps") == WITHOUT_END:
        time.sleep(0.01)
    if trainer.global_step != 2:
        return
    if OPTIONS.get("stuck") == trainer.rank:
        note("stuck", rank=trainer.rank)
        time.sleep(600)
    how = OPTIONS.get("fails")
    if trainer.rank == 1 and how == "raise":
        raise ArithmeticError("in a step of rank 1")
    if trainer.rank == 1 and how == "kill":
        os.kill(os.getpid(), 9)
    if trainer.rank == 0 and how == "raise on rank 0":
        raise ArithmeticError("in a step of rank 0")


class Own(Distributed):
    """As a user would write it, without torch's wrappers: nothing is the same on all ranks but by ours."""

    name = "own"

    def setup(self, module, build_optimizers):
        self.prepare_module(module)
        self._parameters = list(module.parameters())
        return build_optimizers()

    def backward(self, loss):
        super().backward(loss)
        self.average_gradients(self._parameters)


class Notes(Callback):
    """Where a fit begins, that it trains, and where it ends."""

    def on_fit_start(self, trainer):
        note("start", rank=trainer.rank, world=trainer.world_size, weights=weights(trainer.module))

    def on_step_end(self, trainer):
        if trainer.global_step == 3:
            note("trains", rank=trainer.rank)

    def on_fit_end(self, trainer):
        note(
            "end",
            rank=trainer.rank,
            world=trainer.world_size,
            local_rank=trainer.strategy.environment.local_rank,
            strategy=trainer.strategy.name,
            step=trainer.global_step,
            reason=trainer.stop_reason,
            run=str(trainer.folder),
            threads=torch.get_num_threads(),
            weights=weights(trainer.module),
        )


def weights(module) -> list[float]:
    return torch.cat([p.detach().flatten() for p in module.parameters()]).tolist()


def make_trainer(**arguments) -> Trainer:
    arguments = {"accelerator": "cpu", "max_steps": OPTIONS.get("steps", 5)} | arguments
    if arguments.get("strategy") == "own":
        arguments["strategy"] = Own()
    if OPTIONS.get("steps") == WITHOUT_END:
        arguments |= {"callbacks": [Notes(), Checkpoint(every=10**9)]}
    return Trainer(**{"callbacks": [Notes()], "progress": False, "loggers": False} | arguments)


def refused(what: str, function, *arguments, **named) -> None:
    try:
        function(*arguments, **named)
    except PacelineError as error:
        rank = dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", 0))
        note("refused", of=what, rank=rank, said=str(error))
    else:
        note("allowed", of=what)


def train(module, **arguments) -> Trainer:
    trainer = make_trainer(**arguments)
    loader = DataLoader(Points(), 4, shuffle=True, num_workers=OPTIONS.get("workers", 0))
    trainer.fit(module, loader, DataLoader(Points(), 4) if OPTIONS.get("validates") else None)
    return trainer


def differ(**arguments) -> None:
    """differs: rank 1 comes with another argument, data, module in turn, then like the others."""
    trainer = make_trainer(**arguments)
    odd = trainer.rank == 1
    other = make_trainer(**arguments, seed=int(odd))
    refused("argument", other.fit, Line(), DataLoader(Points(), 4))
    refused("data", trainer.fit, Line(), DataLoader(Points(24 + 4 * odd), 4))
    refused("module", trainer.fit, Line(4 + odd), DataLoader(Points(), 4))
    watched = make_trainer(**arguments, callbacks=[Notes(), *[Callback()] * odd])
    refused("callbacks", watched.fit, Line(), DataLoader(Points(), 4))


if __name__ == "__main__":
    note("imported", threads=torch.get_num_threads())
    if OPTIONS.get("moves"):  # the folder is another one by the time of fit
        os.makedirs(OPTIONS["moves"], exist_ok=True)
        os.chdir(OPTIONS["moves"])
    own_rank = OPTIONS.get("own_group")  # no launcher: the script says where it stands
    if own_rank is not None:
        place = f"file://{FOLDER.resolve()}/meet"
        dist.init_process_group("gloo", init_method=place, rank=own_rank, world_size=2)
    for bad in OPTIONS.get("refused", []):
        refused(json.dumps(bad), make_trainer, **bad)
    if OPTIONS.get("differs"):
        differ(devices="auto")
    module = Line()
    for arguments in OPTIONS.get("trainers", [{"devices": 2}]):
        trainer = train(module, **arguments)
        note("after fit", rank=trainer.rank)
    if OPTIONS.get("again"):
        trainer.fit(module, DataLoader(Points(), 4))
        values = trainer.validate(module, DataLoader(Points(), 4))
        note("validated", rank=trainer.rank, loss=values["val/loss"], weights=weights(module))
    if own_rank is not None:
        mine = torch.ones(1)
        dist.all_reduce(mine)
        note("own group", sum=mine.item())
        dist.destroy_process_group()  # it is the script's: what is left of one may abort an ending process
    print(f"printed below by {os.environ.get('RANK')}", flush=True)
