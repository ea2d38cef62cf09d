"""What ``Trainer(batch_size="auto")`` costs a step in which memory does not run out, on one CPU rank.

Before each step it keeps what it would put back. Fits of two models, with and without it by turns: two
linear layers, whose steps are as short as they come, and 50 convolutions with batch norms, which have 150
buffers. Medians of the steps after the fifth. Prints a table; ``--json FILE`` writes it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback

WARM_UP = 5


class Classifier(TrainModule):
    """A model, trained on random classes."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Clock(Callback):
    """When each step ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, trainer, outputs):
        self.ends.append(time.perf_counter())


def mlp() -> tuple[nn.Module, list[int], int]:
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)), [32], 400


def convolutions() -> tuple[nn.Module, list[int], int]:
    parts: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1)]
    for _ in range(50):
        parts += [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)), [3, 16, 16], 25


MODELS = {"two linear layers": mlp, "50 convolutions with batch norms": convolutions}


def seconds_of_a_step(model: str, batch_size: str | None) -> float:
    """The median of one fit."""
    net, shape, steps = MODELS[model]()
    data = TensorDataset(torch.randn(steps * 16, *shape), torch.randint(10, (steps * 16,)))
    clock = Clock()
    quiet = {
        "accelerator": "cpu",
        "progress": False,
        "checkpoint": False,
        "loggers": False,
        "run_dir": None,
    }
    with contextlib.redirect_stdout(io.StringIO()):
        Trainer(**quiet, callbacks=clock, batch_size=batch_size).fit(Classifier(net), DataLoader(data, 16))
    between = [b - a for a, b in zip(clock.ends[WARM_UP:], clock.ends[WARM_UP + 1 :], strict=False)]
    return statistics.median(between)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for model in MODELS:
        pairs = [
            (seconds_of_a_step(model, None), seconds_of_a_step(model, "auto"))
            for _ in range(arguments.rounds)
        ]
        plain = statistics.median(one for one, _ in pairs)
        auto = statistics.median(other for _, other in pairs)
        found[model] = {"plain_us": plain * 1e6, "auto_us": auto * 1e6, "ratio": auto / plain}
        print(f"{model:34} {plain * 1e6:9.0f} us a step, {auto * 1e6:9.0f} with it: x {auto / plain:.3f}")
    if arguments.json:
        about = {"rounds": arguments.rounds, "torch": torch.__version__}
        arguments.json.write_text(json.dumps(about | {"steps": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
