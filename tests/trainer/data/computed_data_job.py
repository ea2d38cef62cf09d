"""Data that is computed on two ranks, alike or not: python computed_data_job.py FOLDER CASE...

Rank 0 writes the warnings of each case to <case>.json.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Checks

RANK = int(os.environ.get("RANK", "0"))


class Tokens(Dataset):
    """Words by their numbers in a vocabulary, whose order may be another one on each rank."""

    def __init__(self, own: bool = True) -> None:
        words = [f"word{number}" for number in range(24)]
        order = random.Random(RANK if own else 0).sample(words, len(words))
        self.vocabulary = {word: number for number, word in enumerate(order)}
        self.words = words

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> Any:
        return {"ids": torch.tensor([self.vocabulary[self.words[index]]]), "text": self.words[index]}


class ByBatch(Tokens):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Augmented(Tokens):
    """Alike on all ranks, since each sample is read under its own seed."""

    def __init__(self) -> None:
        super().__init__(own=False)

    def __getitem__(self, index: int) -> Any:
        drawn = random.randrange(9), int(np.random.randint(9)), int(torch.randint(9, ()))
        return {"ids": super().__getitem__(index)["ids"] + sum(drawn), "text": str(drawn)}


class OwnDraws(Augmented):
    """From a generator that nothing seeds alike, which a second read shows."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = np.random.default_rng(RANK)

    def __getitem__(self, index: int) -> Any:
        return {"ids": torch.tensor([int(self.draws.integers(1 << 20))]), "text": ""}


class Rounded(Tokens):
    """The last bits of a float may be those of the machine."""

    def __init__(self) -> None:
        super().__init__(own=False)

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) | {"float": torch.tensor(1.0) + 1e-6 * RANK, "score": 0.1 * RANK}


class Unreadable(Tokens):
    """Rank 1 cannot read what is another rank's to read."""

    def __init__(self) -> None:
        super().__init__(own=False)
        self.reads: list[int] = []

    def __getitem__(self, index: int) -> Any:
        if RANK == 1 and index < 4:
            raise OSError("not here")
        return super().__getitem__(index)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(Tokens(own=False))


class Net(TrainModule):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1)

    def training_step(self, batch: Any) -> torch.Tensor:
        return self.line(batch["ids"].float() / (1 << 20)).square().mean()

    def validation_step(self, batch: Any) -> None:
        self.log("value", batch["ids"].float().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-6)


CASES = {
    "differ": lambda: DataLoader(Tokens(), 4, shuffle=True),
    "differ in workers": lambda: DataLoader(Tokens(), 4, num_workers=2),
    "differ by the batch": lambda: DataLoader(ByBatch(), 4),
    "differ in batches of a sampler": lambda: DataLoader(
        Tokens(), batch_sampler=[list(range(n, n + 4)) for n in range(0, 24, 4)]
    ),
    "augmented": lambda: DataLoader(Augmented(), 4, shuffle=True),
    "augmented in workers": lambda: DataLoader(Augmented(), 4, num_workers=1),
    "own draws": lambda: DataLoader(OwnDraws(), 4),
    "rounded": lambda: DataLoader(Rounded(), 4),
    "unreadable": lambda: DataLoader(Unreadable(), 4),
    "not collated": lambda: DataLoader(Tokens(own=False), None),
    "stream": lambda: DataLoader(Stream(), 4),
}


def main() -> None:
    folder = Path(sys.argv[1])
    for case in sys.argv[2:]:
        trainer = Trainer(
            accelerator="cpu", devices=2, max_epochs=2, run_dir=folder, name=case.replace(" ", "-"),
            progress=False, loggers=False, checkpoint=False, validate_every="1ep", sanity_val_batches=0,
            callbacks=Checks(skip="split-overlap"),
        )  # fmt: skip
        loader = CASES[case]()
        trainer.fit(Net(), loader, CASES[case]() if case == "differ" else None)
        if trainer.rank == 0:
            log = (trainer.folder / "log.txt").read_text()
            lines = [line for line in log.splitlines() if "warning: " in line]
            (folder / f"{case}.json").write_text(json.dumps([lines, trainer.global_step]))


if __name__ == "__main__":
    main()
