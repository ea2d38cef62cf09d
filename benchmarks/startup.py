"""Seconds until something happens: imports, ``paceline --help``, the end of step 1; and of ``curves.png``.

    python benchmarks/startup.py [--rounds 9] [--pairs 5] [--lightning | --checks] [--json FILE]

Each is a separate process, in alternation, with bytecode as an installed package has it; medians of the
rounds, and of the differences within a round. Fits with and without ``curves.png`` are pairs within one
process, each after the picture of the one before is drawn. ``--lightning`` times a program written for
Lightning under both packages instead: from the start of its process until the first step, and from
``Trainer(...)`` until the first step of later fits in one process. ``--checks`` times a small ViT recipe
with and without the callback ``Checks``: to the end of step 1, and the steps after it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BY_HAND = """
import torch
from torch.nn import functional as F
net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randint(2, (64,)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for x, y in torch.utils.data.DataLoader(data, 8, shuffle=True):
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    break
"""
OURS = """
import os
import torch
from torch.nn import functional as F
from paceline import Trainer, TrainModule
from paceline.callbacks import Callback
class Net(TrainModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    def training_step(self, batch):
        x, y = batch
        return F.cross_entropy(self.net(x), y)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randint(2, (64,)))
class Ends(Callback):
    def on_step_end(self, trainer, outputs):
        os._exit(0)
loader = torch.utils.data.DataLoader(data, 8, shuffle=True)
Trainer(accelerator="cpu", callbacks=[Ends()]).fit(Net(), loader)
"""
PICTURE = """
import json, statistics, sys, time
import torch
from paceline import Trainer, TrainModule
from paceline.callbacks.pictures.curves import wait_for_pictures
class Net(TrainModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(16, 1)
    def training_step(self, batch):
        return self.net(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(64, 16))
def seconds(loggers):
    trainer = Trainer(accelerator="cpu", max_epochs=20, progress=False, loggers=loggers)
    begun = time.perf_counter()
    trainer.fit(Net(), torch.utils.data.DataLoader(data, 8, shuffle=True))
    took = time.perf_counter() - begun
    wait_for_pictures()
    assert (trainer.folder / "curves.png").exists() == (loggers is True)
    return took
pairs = [(seconds(True), seconds(["-curves"])) for _ in range(int(sys.argv[1]) + 1)][1:]
with_, without = (statistics.median(column) for column in zip(*pairs))
print(json.dumps([with_, without, statistics.median(a - b for a, b in pairs)]))
"""
NAMES = """
import torch
from paceline import Trainer, TrainModule, seed_everything
import paceline.callbacks, paceline.strategies
"""
LIGHTNING = """
import json, logging, statistics, sys, time, warnings
import torch
from torch import nn
from {package}.pytorch import LightningModule, Trainer
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.begun = nn.Linear(8, 1), []
    def training_step(self, batch, batch_idx):
        self.begun.append(time.time())
        return self.net(batch[0]).square().mean()
    def validation_step(self, batch, batch_idx):
        self.log("loss", self.net(batch[0]).square().mean())
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 8)), 8)
begun, first = float(sys.argv[1]), []
for _ in range(11):
    net = Net()
    trainer = Trainer(max_epochs=1, accelerator="cpu", enable_progress_bar=False, logger=False)
    trainer.fit(net, loader, loader)
    first.append(net.begun[0] - begun)
    begun = time.time()
print(json.dumps([first[0], statistics.median(first[1:])]))
"""
CHECKS = """
import json, sys, time
from paceline.callbacks import Checks, LambdaCallback
from paceline.recipes.vit_cifar10 import Config, build
ends = {1: 0.0, 10: 0.0, 60: 0.0, 90: 0.0}
def note(trainer):
    if trainer.global_step in ends:
        ends[trainer.global_step] = time.time()
settings = {"max_steps": 90, "accelerator": "cpu", "progress": False, "loggers": False, "checkpoint": False}
model = {"image": 32, "patch": 8, "width": 192, "heads": 6, "depth": 6}
given = {"data": "digits", "workers": 0, "batch_size": 32, "epochs": 4, "model": model}
experiment = build(Config(**given, trainer=settings))
callbacks = experiment.trainer.callbacks
callbacks[:] = [one for one in callbacks if sys.argv[2] == "with" or not isinstance(one, Checks)]
callbacks.append(LambdaCallback(on_step_end=note))
experiment.fit()
times = [float(sys.argv[1]), *ends.values()]
print(json.dumps([later - sooner for sooner, later in zip(times, times[1:])]))
"""
SPANS = ("end of step 1", "steps 2 to 10", "steps 11 to 60", "steps 61 to 90")
PACKAGES = {"Lightning": "lightning", "paceline": "paceline.compat.lightning"}
PROGRAMS = {
    "import torch": [sys.executable, "-c", "import torch"],
    "import paceline": [sys.executable, "-c", "import torch, paceline"],
    "the names of a script": [sys.executable, "-c", NAMES],
    "paceline --help": [sys.executable, "-m", "paceline", "--help"],
    "step 1 by hand": [sys.executable, "-c", BY_HAND + "import os; os._exit(0)"],
    "step 1": [sys.executable, "-c", OURS],
}
DIFFERENCES = {
    "import paceline": "import torch",
    "the names of a script": "import torch",
    "step 1": "step 1 by hand",
}


def seconds(command: list[str], folder: str) -> float:
    """What a process takes from its start to its end."""
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
    begun = time.perf_counter()
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, env=os.environ | bytecode)
    return time.perf_counter() - begun


def script_times(rounds: int, folder: str) -> dict[str, dict[str, float]]:
    """What each of PROGRAMS takes, and how much more than the one it is compared with."""
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for number in range(rounds + 1 if rounds else 0):
        for name, command in PROGRAMS.items():
            took = seconds(command, folder)
            if number:  # the first round fills the disk's cache and writes the bytecode
                times[name].append(took)
    timed = {name: values for name, values in times.items() if values}
    result = {name: {"seconds": round(statistics.median(values), 3)} for name, values in timed.items()}
    for name, base in DIFFERENCES.items() if timed else ():
        more = [a - b for a, b in zip(times[name], times[base], strict=True)]
        result[name][f"beyond {base}"] = round(statistics.median(more), 3)
    return result


def picture(pairs: int, folder: str) -> dict[str, dict[str, float]]:
    """What a fit takes with ``curves.png`` and without, in one process."""
    command = [sys.executable, "-c", PICTURE, str(pairs)]
    done = subprocess.run(command, check=True, cwd=folder, stdout=subprocess.PIPE, text=True)
    drawn, plain, more = (round(value, 3) for value in json.loads(done.stdout.splitlines()[-1]))
    return {
        "a fit": {"seconds": plain},
        "a fit with curves.png": {"seconds": drawn, "beyond a fit": more},
    }


def first_steps(rounds: int, folder: str) -> dict[str, dict[str, float]]:
    """Until the first step of a program written for Lightning: of its process, and of later fits in it."""
    found: dict[str, list[list[float]]] = {name: [] for name in PACKAGES}
    for _ in range(rounds + 1):
        for name, package in PACKAGES.items():
            program = LIGHTNING.replace("{package}", package)
            command = [sys.executable, "-c", program, str(time.time())]
            done = subprocess.run(command, check=True, cwd=folder, stdout=subprocess.PIPE, text=True)
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    return {
        kind: {
            name: round(statistics.median(row[n] for row in rows[1:]), 4) for name, rows in found.items()
        }
        for n, kind in enumerate(("first step of a process", "of a later fit"))
    }


def checks(rounds: int, folder: str) -> dict[str, dict[str, float]]:
    """Seconds of the ViT recipe with and without ``Checks``, and the median of their differences."""
    found: dict[str, list[list[float]]] = {"with": [], "without": []}
    for number in range(rounds + 1):
        for name in sorted(found, reverse=bool(number % 2)):
            command = [sys.executable, "-c", CHECKS, str(time.time()), name]
            done = subprocess.run(command, check=True, cwd=folder, stdout=subprocess.PIPE, text=True)
            if number:
                found[name].append(json.loads(done.stdout.splitlines()[-1]))
    result = {}
    for number, span in enumerate(SPANS):
        with_, without = ([row[number] for row in found[name]] for name in ("with", "without"))
        more = statistics.median(a - b for a, b in zip(with_, without, strict=True))
        medians = {"with": statistics.median(with_), "without": statistics.median(without), "more": more}
        result[span] = {name: round(value, 3) for name, value in medians.items()}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="0: curves.png alone")
    parser.add_argument("--pairs", type=int, default=5, help="of fits with and without curves.png")
    parser.add_argument("--lightning", action="store_true", help="first steps under both packages alone")
    parser.add_argument(
        "--checks", action="store_true", help="the ViT recipe with and without Checks alone"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.lightning:
            result = first_steps(arguments.rounds, folder)
        elif arguments.checks:
            result = checks(arguments.rounds, folder)
        else:
            result = script_times(arguments.rounds, folder) | picture(arguments.pairs, folder)
    for name, row in result.items():
        print(f"{name:<24}" + "  ".join(f"{key} {value}" for key, value in row.items()))
    if arguments.json:
        found = {"rounds": arguments.rounds, "pairs": arguments.pairs, "result": result}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
