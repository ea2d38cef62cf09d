"""A rank of a job: a loop of this folder, or a fit in parts; rank 0 writes what it found.

python ranks.py PACKAGE OUT WHAT STRATEGY DEVICES [FILE]
"""

import importlib
import json
import os
import sys
import types
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def program(package, name):
    """A loop, with its import lines changed."""
    source = Path(__file__).with_name(f"{name}.py").read_text()
    source = source.replace("import lightning as L", f"import {package} as L")
    found = types.ModuleType(name)
    sys.modules[name] = found
    exec(source.replace("from lightning.", f"from {package}."), vars(found))
    return found.main


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, inputs, *, gain=1.0):
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        return self.last(hidden) * self.scale * gain


def fit(fabric, file, samples=21, batch=6):
    """Two epochs with a last step that is shorter; with a file: the second one, from it."""
    model = Net()
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=0.02))
    inputs = torch.randn(samples, 3, generator=torch.Generator().manual_seed(0))
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True), torch.arange(samples))
    loader = fabric.setup_dataloaders(DataLoader(dataset, batch // fabric.world_size, shuffle=True))
    state = {"model": model, "optimizer": optimizer, "loader": loader, "step": 0}
    if file is not None:
        fabric.load(file, state)
    seen = []
    for _ in range(1 if file is not None else 2):
        for inputs, targets, numbers in loader:
            loss = nn.functional.mse_loss(model(inputs, gain=1.5), targets)
            fabric.backward(loss * loader.loss_weight)
            fabric.clip_gradients(model, optimizer, max_norm=0.5)
            optimizer.step()
            optimizer.zero_grad()
            state["step"] += 1
            seen.append([n for part in fabric.ranks.all_gather(numbers.tolist()) for n in part])
        if state["step"] == 4:
            fabric.save("after_one.ckpt", state)
    fabric.save("end.ckpt", state)
    saved = torch.load("end.ckpt", weights_only=True)
    return seen, {name: value.tolist() for name, value in saved["model"].items()}


def main(package, out, what, strategy, devices, file=None):
    """Run it on so many ranks."""
    options = {"strategy": strategy, "devices": int(devices)}
    if what == "fit":
        fabric = importlib.import_module(package).Fabric(accelerator="cpu", **options)
        fabric.launch()
        found = fit(fabric, file)
    else:
        found = program(package, what)(**options)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
