"""Microseconds a step over DataLoaders: what exact order and seeding cost, what reading by the batch gives.

    python benchmarks/loaders.py [--rounds 7] [--json FILE]

The same loop, model and DataLoader by hand and under the Trainer, interleaved: digits in memory (a
``TensorDataset``, batch 128), and a dataset that reads or draws sample by sample (batch 32), without and
with two workers. Whole runs are timed, after the first batch of the first epoch; losses are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from paceline import Trainer, TrainModule, order_seed, seed_everything
from paceline.callbacks import Callback

SEED = 0


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1797 pictures of 64 numbers, and what they show."""
    data = load_digits()
    return torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)


class Samples(Dataset):
    """The digits one by one; mirrored by a draw where ``draws``."""

    def __init__(self, draws: bool) -> None:
        self.x, self.y = digits()
        self.draws = draws

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> Any:
        x = self.x[index]
        if self.draws and torch.rand(()) < 0.5:
            x = x.flip(0)
        return x, self.y[index]


LOADERS: dict[str, tuple[int, Callable[[], DataLoader]]] = {
    "TensorDataset": (40, lambda: DataLoader(TensorDataset(*digits()), 128, shuffle=True)),
    "reads": (6, lambda: DataLoader(Samples(False), 32, shuffle=True)),
    "draws": (6, lambda: DataLoader(Samples(True), 32, shuffle=True)),
    "draws, 2 workers": (
        6,
        lambda: DataLoader(Samples(True), 32, shuffle=True, num_workers=2, persistent_workers=True),
    ),
}


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def by_hand(loader: DataLoader, epochs: int) -> tuple[float, list[float]]:
    """Seconds, and the loss of each step."""
    net, losses = make_net(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    begun = 0.0
    for epoch in range(epochs):
        seed_everything(order_seed(SEED, epoch))
        for x, y in loader:
            begun = begun or time.perf_counter()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return time.perf_counter() - begun, losses


class Net(TrainModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Watch(Callback):
    """From the first batch to the end of the last epoch."""

    begun = 0.0

    def on_step_start(self, trainer, batches):
        self.begun = self.begun or time.perf_counter()

    def on_train_epoch_end(self, trainer):
        self.seconds = time.perf_counter() - self.begun


def ours(loader: DataLoader, epochs: int) -> tuple[float, list[float]]:
    """The same under the Trainer."""
    watch, net = Watch(), Net()
    off = {"accelerator": "cpu", "progress": False, "loggers": False, "checkpoint": False}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = Trainer(**off, callbacks=[watch], seed=SEED, max_epochs=epochs, run_dir=folder)
        trainer.fit(net, loader)
    return watch.seconds, net.losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = {}
    print(f"{'loader':<18}{'by hand':>10}{'paceline':>10}{'times as fast':>15}  same losses")
    for name, (epochs, make) in LOADERS.items():
        rounds = []
        for number in range(arguments.rounds + 1):
            gc.collect()
            pair = (by_hand, ours) if number % 2 else (ours, by_hand)
            found = {loop.__name__: loop(make(), epochs) for loop in pair}
            rounds.append(found)
        same = all(found["ours"][1] == found["by_hand"][1] for found in rounds)
        steps = len(rounds[0]["ours"][1])
        times = {
            loop: [found[loop][0] / steps * 1e6 for found in rounds[1:]] for loop in ("by_hand", "ours")
        }
        ratios = [raw / our for raw, our in zip(times["by_hand"], times["ours"], strict=True)]
        row = {loop: round(statistics.median(values), 1) for loop, values in times.items()}
        row |= {"times_as_fast": round(statistics.median(ratios), 3), "same_losses": same}
        result[name] = row
        print(f"{name:<18}{row['by_hand']:>10}{row['ours']:>10}{row['times_as_fast']:>15}  {same}")
    if arguments.json:
        about = {"torch": torch.__version__, "rounds": arguments.rounds}
        arguments.json.write_text(json.dumps({"about": about, "us_per_step": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
