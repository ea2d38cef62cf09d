"""Whole epochs with loader workers on a CPU, hand-written and under the Trainer, one after the other.

    python benchmarks/epochs.py [--models cnn vit] [--workers 2] [--epochs 30] [--rounds 3] [--json FILE]

The models and data of ``throughput.py``. Each epoch of the Trainer, from the start of its workers to the
next epoch's, is followed by one of a hand-written loop in the same process: what the machine does beside
strikes both alike. Medians of the ratios of such pairs.
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
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from workloads import ON_CPU, Workload, loss_of

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback


class ByHand:
    """The loop one would write; an epoch of it at each call."""

    def __init__(self, workload: Workload, loader: DataLoader) -> None:
        self.net, self.loader = workload.net(), loader
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4)

    def epoch(self) -> float:
        """Seconds."""
        begun = time.perf_counter()
        for batch in self.loader:
            loss = loss_of(self.net, batch)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return time.perf_counter() - begun


class Module(TrainModule):
    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.net = workload.net()

    def training_step(self, batch: Any) -> Any:
        return loss_of(self.net, batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


class InTurn(Callback):
    """Times an epoch of the run, until the next one begins, then one by hand."""

    def __init__(self, by_hand: ByHand) -> None:
        self.by_hand = by_hand
        self.pairs: list[tuple[float, float]] = []
        self.begun = 0.0

    def on_train_epoch_start(self, trainer: Trainer) -> None:
        ours = time.perf_counter() - self.begun
        gc.unfreeze()  # a loop by hand has the collector as it is
        self.pairs.append((self.by_hand.epoch(), ours))
        gc.freeze()
        self.begun = time.perf_counter()


def measure(workload: Workload, workers: int, epochs: int) -> list[tuple[float, float]]:
    """Seconds of pairs of epochs, hand-written and ours, without the first ones."""
    dataset = workload.dataset()

    def loader() -> DataLoader:
        return DataLoader(dataset, workload.batch, shuffle=True, drop_last=True, num_workers=workers)

    in_turn = InTurn(ByHand(workload, loader()))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=epochs + 2,
            checkpoint=False,
            callbacks=[in_turn],
            run_dir=folder,
        )
        trainer.fit(Module(workload), loader())
    return in_turn.pairs[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["cnn", "vit"], choices=list(ON_CPU))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = {}
    print(f"{'model':<8}{'by hand, s':>12}{'paceline, s':>13}{'times as fast':>15}{'middle half':>18}")
    for model in arguments.models:
        runs = [
            measure(ON_CPU[model], arguments.workers, arguments.epochs) for _ in range(arguments.rounds)
        ]
        pairs = [pair for run in runs for pair in run]
        low, ratio, high = statistics.quantiles((hand / ours for hand, ours in pairs), n=4)
        hand, ours = (round(statistics.median(column), 3) for column in zip(*pairs, strict=True))
        result[model] = {
            "by_hand_s": hand,
            "paceline_s": ours,
            "times_as_fast": round(ratio, 3),
            "middle_half": [round(low, 3), round(high, 3)],
        }
        print(f"{model:<8}{hand:>12}{ours:>13}{ratio:>15.3f}{low:>11.3f}-{high:.3f}")
    if arguments.json:
        about = {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "workers": arguments.workers,
            "pairs": arguments.rounds * arguments.epochs,
        }
        arguments.json.write_text(json.dumps({"about": about, "result": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
