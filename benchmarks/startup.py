"""Seconds until something happens: imports, ``paceline --help``, the end of step 1.

    python benchmarks/startup.py [--rounds 9] [--json FILE]

Each is a separate process, in alternation, with bytecode as an installed package has it; medians of the
rounds, and of the differences within a round.
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
NAMES = """
import torch
from paceline import Trainer, TrainModule, seed_everything
import paceline.callbacks, paceline.strategies
"""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds + 1):
            for name, command in PROGRAMS.items():
                took = seconds(command, folder)
                if number:  # the first round fills the disk's cache and writes the bytecode
                    times[name].append(took)
    result = {name: {"seconds": round(statistics.median(values), 3)} for name, values in times.items()}
    for name, base in DIFFERENCES.items():
        more = [a - b for a, b in zip(times[name], times[base], strict=True)]
        result[name][f"beyond {base}"] = round(statistics.median(more), 3)
    for name, row in result.items():
        print(f"{name:<23}" + "  ".join(f"{key} {value}" for key, value in row.items()))
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"rounds": arguments.rounds, "result": result}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
